-- The end of a record: of a finished job only its identity and outcome are kept.
-- keys: payloads results attempts logs

local function entomb(verb, id, h)
  drop((place(id, h)), id)
  tally(deltas, h[STATE], h[QUEUE], -1)
  if h[TURN] > 0 and h[STATE] == 'dead' then
    meet({ h }, 1)
    vacate(lane_of(h[LANES][h[TURN]]), id)
  end
  if h[STATE] == 'dead' then drop(deaths, obituary(id, h)) end
  h[COMPACT], h[LANES], h[HOME], h[TURN], h[PROGRESS], h[UNIQUE], h[DEATH] = 1, {}, 0, 0, '', '', ''
  add(tombs, h[SINCE], id)
  for _, key in ipairs({ payloads, results, attempts, logs }) do erase(key, id) end
  h.payload = nil
  note(verb, id, h)
  save(id, h)
end

-- is_needed(h) → is it a member of a batch that has not ended? Then it stays, whatever its age and their number.
local function is_needed(h)
  if h[BATCH] == '' then return false end
  need_batches()
  local b = batch_kit.of(h[BATCH], h[CREATED])
  return b and b[B_PHASE] ~= 'ended'
end
