-- Running again: a dead or cancelled job goes to the tail of its line, with a fresh budget.
-- keys: payloads

local revived = {}   -- unique key → the job that has taken it again

local function is_free(key, id)
  if key == '' then return true end
  local other = revived[key] or call('HGET', unique, key)
  return not other or other == id
end

-- edit(id, h, payload, other_lanes, key): other arguments, and what follows from them; a member stays in its batch's lane.
local function edit(id, h, payload, other_lanes, key)
  h.payload = payload
  if #payload < INLINE then erase(payloads, id) end
  h[SIZE], h[UNIQUE] = #payload, key or h[UNIQUE]
  if not other_lanes then return end
  if h[TURN] > 0 then vacate(lane_of(h[LANES][h[TURN]]), id) end
  h[TURN], h[LANES] = 0, other_lanes
  if h[BATCH] ~= '' then
    need_batches()
    batch_kit.adopt(h)
  end
end

-- again(verb, id, h, payload, other_lanes, key) → ok | missing | taken (another job has its unique key), or the state that it
-- is in.
local function again(verb, id, h, payload, other_lanes, key)
  if not h or h[COMPACT] == 1 or not (payload or h.payload or call('HEXISTS', payloads, id) == 1) then
    return h and h[STATE] == 'done' and 'done' or 'missing'
  end
  if h[STATE] ~= 'dead' and h[STATE] ~= 'cancelled' then return h[STATE] end
  if not is_free(key or h[UNIQUE], id) then return 'taken' end
  if payload then edit(id, h, payload, other_lanes, key) end
  if h[STATE] == 'dead' then drop(deaths, obituary(id, h)) end
  h[FAILURES], h[CRASHES], h[STARTS], h[RELEASES], h[CANCELLING] = 0, 0, 0, 0, 0
  h[GENERATION], h[REASON], h[EXPIRES], h[PROGRESS], h[LAST], h[DEATH] = h[GENERATION] + 1, '', 0, '', '', ''
  h[DUE] = math.min(h[DUE], now)
  if h[UNIQUE] ~= '' then revived[h[UNIQUE]] = id end
  tail(id, h)
  line_up(verb, id, h)
  return 'ok'
end
