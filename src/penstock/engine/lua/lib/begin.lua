-- What lease gives to a worker, and the start of those jobs that have no header.
-- keys: payloads

local claim = ARGV[1] .. SEP .. ARGV[2]
local answer = { 'ok', 0 }
local picked, size, bytes = 0, 0, tonumber(ARGV[5])   -- jobs and their payloads so far, and at most
local next_lines = {}   -- id → member of `held`, of those that a lane would show next
local halted = halted_in(halted_now)
local first_fence = math.max(tonumber(fence_before or 0), now_us - 1)
local fence = first_fence
local running_mark = mark_of(claim)

local function give(id, packed, payload)
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = id, packed, payload
end

-- too_much(bulk) → would this one make the answer too big? Otherwise it is counted.
local function too_much(bulk)
  if picked > 0 and size + bulk > bytes then return true end
  picked, size = picked + 1, size + bulk
  return false
end

-- fetch_payloads(ids): those that are not part of their records.
local distant = {}   -- id → its payload, or false if it is lost
local function fetch_payloads(ids)
  if #ids == 0 then return end
  for n, payload in ipairs(call('HMGET', payloads, unpack(ids))) do distant[ids[n]] = payload end
end

-- start_one(id, kind, packed, waited): this one runs.
local records, places, holds = pile(2, 'HSET', jobs), pile(3, 'ZREM', ready), pile(4, 'ZADD', leases)
local function start_one(id, kind, packed, waited)
  local a, b = records.n, holds.n
  records[a + 1], records[a + 2], records.n = id, packed, a + 2
  holds[b + 1], holds[b + 2], holds.n = '0', claim .. SEP .. id, b + 2
  if quota[kind[QUEUE]] then quota[kind[QUEUE]] = quota[kind[QUEUE]] - 1 end
  kind.spans[waited] = (kind.spans[waited] or 0) + 1
  join('lease', kind, id)
  give(id, packed, distant[id] or '')
end

-- kinds_from(some, raw, from) → the kinds of jobs without a lane, the position of the last one that is in order, and those whose
-- payload is not part of their record.
local function kinds_from(some, raw, from)
  local found, far, kind, to = {}, {}, nil, #some
  for i = from, to do
    local packed = raw[i]
    if not packed or string.byte(packed) ~= PLAIN or cache[some[i]] then to = i - 1 break end
    if not kind or string.sub(packed, 1, #kind.mark) ~= kind.mark then kind = kind_at(packed, 0) end
    local inside = is_inside(packed, #kind.mark + 23)
    if inside == nil or halted[kind[TASK]] then to = i - 1 break end
    if not inside then far[#far + 1] = some[i] end
    found[i] = kind
  end
  return found, to, far
end

-- start_plain(some, raw, from) → the position of the first job that has a lane or a header, or is not to run as it is; those
-- before it run.
local function start_plain(some, raw, from)
  local fine, kinds_of, to, far = pcall(kinds_from, some, raw, from)
  if not fine then return from end
  fetch_payloads(far)
  local mark = IS_BEGUN .. running_mark
  for i = from, to do
    local id, kind, n = some[i], kinds_of[i], places.n + 1
    local enqueued, _, bulk = struct.unpack('>I8BI4', raw[i], #kind.mark + 11)
    if distant[id] == false or too_much(bulk) then return i end
    fence = fence + 1
    places[n], places.n = lines[id], n
    start_one(id, kind, mark .. struct.pack('>I8', fence) .. raw[i], now - enqueued)
  end
  return to + 1
end

-- lanes_from(some, raw, from, mark) → the same of those with a lane: by position their kinds, lanes and sizes; and the names of lanes.
local function lanes_from(some, raw, from, mark)
  local found, specs, sizes, asked, far, kind, to = {}, {}, {}, {}, {}, nil, #some
  for i = from, to do
    local packed = raw[i]
    if not packed or string.sub(packed, 1, 2) ~= mark or cache[some[i]] then to = i - 1 break end
    kind = kind_at(packed, 20, kind)
    local at, spec = lane_at(packed, 20 + #kind.mark, kind)
    local inside = is_inside(packed, at + 23)
    if inside == nil or halted[kind[TASK]] then to = i - 1 break end
    if not inside then far[#far + 1] = some[i] end
    if spec ~= specs[i - 1] then asked[#asked + 1] = lane_name(spec) end
    found[i], specs[i], sizes[i] = kind, spec, struct.unpack('>I4', packed, at + 20)
  end
  return to, found, specs, sizes, far, asked
end

-- is_next(id, kind, lane, number) → is it this one that the lane would show next?
local function is_next(id, kind, lane, number)
  return next_lines[id] == lane.name .. SEP .. kind[QUEUE] .. SEP .. rank_of(kind[PRIORITY], number) .. SEP .. id
end

-- leave_held(id, kind, lane, row, since): it waits there no more.
local function leave_held(id, kind, lane, row, since)
  row.waiting, kind.waited = row.waiting - 1, kind.waited + 1
  row.group = row.group or lane.name .. SEP .. kind[QUEUE] .. SEP
  left_held(next_lines[id], row.group)
  measure(kind[QUEUE], 'lane', now - since, 1)
end

-- start_laned(some, raw, from, state) → the same for those with a lane, which shows or holds them.
local function start_laned(some, raw, from, state)
  local is_held, mark = state == 'held', IS_BEGUN_LANED .. running_mark
  local fine, to, kinds_of, specs, sizes, far, asked = pcall(lanes_from, some, raw, from, is_held and IS_HELD or IS_SHOWN)
  if not fine or to < from then return from end
  fetch_payloads(far)
  need_lanes()
  need_line()
  fetch(asked)
  local slots, exits, members = pile(4, 'ZADD', holders), pile(3, 'ZREM', is_held and held or ready), is_held and next_lines or lines
  local lane, row
  for i = from, to do
    local id, packed, kind = some[i], raw[i], kinds_of[i]
    local since, _, number = struct.unpack('>I8BI8', packed, 4)
    if not lane or specs[i] ~= specs[i - 1] or kind ~= kinds_of[i - 1] then lane, row = only_limited(specs[i], kind[QUEUE]) end
    local is_fit = lane and lane.limit - lane.use >= 1 and (not is_held or is_next(id, kind, lane, number))
    if not is_fit or distant[id] == false or too_much(sizes[i]) then return i end
    if is_held then leave_held(id, kind, lane, row, since) else unshow_in(row, id) end
    local a, b = slots.n, exits.n + 1
    slots[a + 1], slots[a + 2], slots.n = '0', lane.name .. SEP .. id, a + 2
    exits[b], exits.n = members[id], b
    lane.use = lane.use + 1
    if row.waiting > 0 and lane.limit - lane.use > #row.shown then refill(lane) end
    fence = fence + 1
    packed = mark .. struct.pack('>I8', fence) .. string.sub(packed, 3)
    start_one(id, kind, packed, is_held and 0 or now - since)   -- while it was held it waited for a lane
  end
  return to + 1
end
