-- revive: dead | cancelled → ready | held, at the tail of its line, with a fresh budget.
-- include: header write lanes move line enter finish
-- keys: payloads
-- args: per job its id, and to run it with other arguments its payload and msgpack of [lanes, unique key], '' for the same
-- returns: per job: ok | missing | taken (its unique key has another holder), or the state that it is in
-- event: revive
local ids, answers = {}, {}
for at = 1, ARGC, 3 do ids[#ids + 1] = ARGV[at] end
local headers = read(ids)
meet(headers, #ids)
local taken = {}

-- changes(i) → its payload, lanes and unique key, if they are other ones.
local function changes(i)
  local payload, packed = ARGV[i * 3 - 1], ARGV[i * 3]
  if payload == '' then return nil end
  local rest = packed ~= '' and cmsgpack.unpack(packed) or {}
  return payload, rest[1], rest[2]
end

local function free(key, id)
  if key == '' then return true end
  local holder = taken[key] or call('HGET', unique, key)
  return not holder or holder == id
end

local function edit(id, h, payload, other_lanes, key)
  store(payloads, id, payload)
  h[SIZE], h[UNIQUE] = #payload, key or h[UNIQUE]
  if not other_lanes then return end
  if h[TURN] > 0 then vacate(lane_of(h[LANES][h[TURN]]), id) end
  h[TURN], h[LANES] = 0, other_lanes
end

local function fresh(id, h)
  if h[STATE] == 'dead' then drop(deaths, obituary(id, h)) end
  h[FAILURES], h[CRASHES], h[STARTS], h[RELEASES], h[CANCELLING] = 0, 0, 0, 0, 0
  h[GENERATION], h[REASON], h[EXPIRES], h[PROGRESS], h[LAST], h[DEATH] = h[GENERATION] + 1, '', 0, '', '', ''
  h[DUE] = math.min(h[DUE], now)
  if h[UNIQUE] ~= '' then taken[h[UNIQUE]] = id end
  tail(id, h)
  line_up('revive', id, h)
end

for i, id in ipairs(ids) do
  local h, payload, other_lanes, key = headers[i], changes(i)
  if not h or h[COMPACT] == 1 or (not payload and call('HEXISTS', payloads, id) == 0) then
    answers[i] = h and h[STATE] == 'done' and 'done' or 'missing'
  elseif h[STATE] ~= 'dead' and h[STATE] ~= 'cancelled' then
    answers[i] = h[STATE]
  elseif not free(key or h[UNIQUE], id) then
    answers[i] = 'taken'
  else
    if payload then edit(id, h, payload, other_lanes, key) end
    fresh(id, h)
    answers[i] = 'ok'
  end
end
finish()
return answers
