-- What lease gives to a worker, and the start of those jobs that have no header.
-- keys: payloads

local claim = ARGV[1] .. SEP .. ARGV[2]
local answer = { 'ok', 0 }
local picked, size, bytes = 0, 0, tonumber(ARGV[5])   -- jobs and their payloads so far, and at most
local next_lines = {}   -- id → member of `held`, of those that a lane would show next
local halted = halted_in(halted_now)
local first_fence = math.max(tonumber(fence_before or 0), now_us - 1)
local fence = first_fence
local claim_head, run_front = claim .. SEP, front_of_run(claim)

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

-- start_run(kind, some, packed, from, to): these, which are of one kind, run; what is stored of them is in packed. Here and
-- where else every job comes by, one assignment at a time: several at once take more steps.
local records, places, holds = pile(2, 'HSET', jobs), pile(3, 'ZREM', ready), pile(5, 'ZADD', leases)
local function start_run(kind, some, packed, from, to)
  if to < from then return end
  local one, queue, many = event_of('lease', kind), kind[QUEUE], to - from + 1
  local told, a, b, c, d = one[6], records.n, holds.n, one[7], #answer
  for i = from, to do
    local id, record = some[i], packed[i]
    a = a + 2
    records[a - 1] = id
    records[a] = record
    b = b + 2
    holds[b - 1] = '0'
    holds[b] = claim_head .. id
    c = c + 1
    told[c] = id
    d = d + 3
    answer[d - 2] = id
    answer[d - 1] = record
    answer[d] = distant[id] or ''
  end
  records.n, holds.n, one[7], kind.n = a, b, c, kind.n + many
  if quota[queue] then quota[queue] = quota[queue] - many end
end

-- fetch_far(some, raw, from): the payloads of those from here on that are not part of their records, as far as these tell.
local function fetch_far(some, raw, from)
  local far = {}
  for i = from, #some do
    local packed = raw[i] or ''
    if #packed >= SHORTEST_RECORD and struct.unpack(SIZE_FORMAT, packed, SIZE_AT) >= INLINE then far[#far + 1] = some[i] end
  end
  fetch_payloads(far)
end

-- start_alone(some, raw, from, owners) → the position after those, from here on, that need no look at any lane; these run. They have
-- none or, where owners are meant, a lock that is their own (lib/locks.lua).
local function start_alone(some, raw, from, owners)
  local sub, numbers, count, first, n, bulk = string.sub, struct.unpack, #some, from, places.n, size
  local i, begins = from, owners and OWNER_FRONT or READY_FRONT
  local label, form, form_to, kind, front   -- of the last ones
  local wait, alike = 0, 0   -- so long waited the last ones, so many of them
  while i <= count do
    local id, packed = some[i], raw[i]
    if not packed or cache[id] or sub(packed, 1, FRONT) ~= begins or #packed < SHORTEST_RECORD then break end
    if owners and shown_as[id] then break end   -- its lock was taken apart
    local since, many = numbers(SINCE_AND_SIZE, packed, SINCE_AT)
    local to = form_to
    if not form or sub(packed, FORM_AT, to) ~= form then
      local label_size, lane_size, rare_size = numbers(FORM_FORMAT, packed, FORM_AT)
      local text = sub(packed, LABEL_AT, SHORTEST_RECORD + label_size)
      if rare_size > 0 or (lane_size > 0) ~= owners then break end
      to = SHORTEST_RECORD + label_size + lane_size + (owners and ARRIVAL_SIZE or 0)
      if text ~= label then
        local other = known_kind(text)
        if not other or halted[other[TASK]] then break end
        if kind then
          measure('wait', kind[QUEUE], wait, alike)
          start_run(kind, some, raw, first, i - 1)
          alike = 0
        end
        first, kind, label = i, other, text
        if not owners then form, form_to = other.form, to end   -- owners differ in their locks
      end
    end
    if #packed - to ~= many or many >= INLINE then
      if not fits(#packed - to, many) then break end
      if distant[id] == nil then fetch_far(some, raw, i) end
      if not distant[id] then break end
    end
    if picked > 0 and bulk + many > bytes then break end
    picked = picked + 1
    bulk = bulk + many
    local waited = now - since
    if waited ~= wait then
      measure('wait', kind[QUEUE], wait, alike)
      wait, alike = waited, 0
    end
    alike = alike + 1
    n = n + 1
    places[n] = lines[id]
    fence = fence + 1
    local last_byte = fence % 256
    if last_byte == 0 or not front then front = run_front .. sub(struct.pack(FENCE_FORMAT, fence), 1, -2) end
    raw[i] = front .. (bytes_of[last_byte] or bytes_of.new(last_byte)) .. claim .. sub(packed, BODY_AT)
    i = i + 1
  end
  places.n, size = n, bulk
  if kind then
    measure('wait', kind[QUEUE], wait, alike)
    start_run(kind, some, raw, first, i - 1)
  end
  return i
end

-- lanes_from(some, raw, from, mark) → the position of the last one with a lane that is in order; where they differ from the one
-- before: kind, lane, and where that ends; how big their payloads are, those whose payload is elsewhere, and the names of lanes.
local function lanes_from(some, raw, from, mark)
  local found, specs, ends, sizes, asked, far, sub, numbers, to = {}, {}, {}, {}, {}, {}, string.sub, struct.unpack, #some
  local kind, spec, at, alike, alike_to
  for i = from, to do
    local packed = raw[i]
    if not packed or sub(packed, 1, FRONT) ~= mark or cache[some[i]] or #packed < SHORTEST_RECORD then to = i - 1 break end
    local many, label_size, lane_size, rare_size = numbers(SIZE_FORMAT, packed, BODY_AT), numbers(FORM_FORMAT, packed, FORM_AT)
    if lane_size == 0 or rare_size > 0 then to = i - 1 break end
    at = SHORTEST_RECORD + label_size + lane_size
    if not alike or at ~= alike_to or sub(packed, LABEL_AT, at) ~= alike then
      kind, spec = known_kind(sub(packed, LABEL_AT, SHORTEST_RECORD + label_size)), sub(packed, LABEL_AT + label_size, at)
      if not kind or halted[kind[TASK]] then to = i - 1 break end
      local name = lane_name(spec)
      asked[#asked + 1] = name
      alike, alike_to = name ~= spec and kind[BATCH] ~= '' and sub(packed, LABEL_AT, at), at
      found[i], specs[i], ends[i] = kind, spec, at
    end
    if not fits(#packed - at - ARRIVAL_SIZE, many) then to = i - 1 break end
    sizes[i] = many
    if many >= INLINE then far[#far + 1] = some[i] end
  end
  return to, found, specs, ends, sizes, far, asked
end

-- start_shared(some, raw, from, to, kind, lane, row, sizes, is_held, lane_end) → the position after those of one kind that this lane,
-- which shows or holds them, has room for, and that fit into the answer; they are got ready to run.
local function start_shared(some, raw, from, to, kind, lane, row, sizes, is_held, lane_end)
  local slots, exits = pile(5, 'ZADD', holders), pile(3, 'ZREM', is_held and held or ready)
  local members = is_held and next_lines or lines
  local slot_head, priority = lane.name .. SEP, kind[PRIORITY]
  local what, queue, wait, alike = is_held and 'lane' or 'wait', kind[QUEUE], 0, 0   -- so long waited the last ones, so many of them
  local line_head = slot_head .. queue .. SEP
  local a, b, free, left, shown, at = slots.n, exits.n, lane.limit - lane.use, row.waiting, row.shown, from
  local sub, numbers, many, bulk, shows_more, front, block, start = string.sub, struct.unpack, picked, size, false, nil, nil, nil
  while at <= to and free >= 1 do
    local id, packed = some[at], raw[at]
    local since = numbers(TIME_FORMAT, packed, SINCE_AT)
    local member, waited = members[id], now - since
    if is_held then   -- is it this one that the lane would show next?
      local number = numbers(TIME_FORMAT, packed, lane_end + 1)   -- its arrival
      local low = number % 256
      if number - low ~= block then
        block, start = number - low, line_head .. sub(rank_of(priority, number), 1, -3)
      end
      if member ~= start .. (pairs_of[low] or pairs_of.new(low)) .. SEP .. id then break end
    end
    if distant[id] == false or (many > 0 and bulk + sizes[at] > bytes) then break end
    many = many + 1
    bulk = bulk + sizes[at]
    if is_held then left = left - 1 else unshow_in(row, id) end
    free = free - 1
    if not shows_more and left > 0 and free > #shown then shows_more = true end
    a = a + 2
    slots[a - 1] = '0'
    slots[a] = slot_head .. id
    b = b + 1
    exits[b] = member
    if waited ~= wait then
      measure(what, queue, wait, alike)
      wait, alike = waited, 0
    end
    alike = alike + 1
    fence = fence + 1
    local last_byte = fence % 256
    if last_byte == 0 or not front then front = run_front .. sub(struct.pack(FENCE_FORMAT, fence), 1, -2) end
    raw[at] = front .. (bytes_of[last_byte] or bytes_of.new(last_byte)) .. claim .. sub(packed, BODY_AT)
    at = at + 1
  end
  measure(what, queue, wait, alike)
  slots.n, exits.n, lane.use, picked, size = a, b, lane.use + at - from, many, bulk
  if shows_more then refill(lane) end
  if is_held then
    row.waiting, kind.waited = left, kind.waited + at - from
    if at > from then have_left(exits, b - at + from + 1, b, line_head) end
  end
  return at
end

-- start_laned(some, raw, from, state) → the same for those with a lane, which shows or holds them.
local function start_laned(some, raw, from, state)
  local is_held = state == 'held'
  local fine, to, kinds_of, specs, ends, sizes, far, asked = pcall(lanes_from, some, raw, from, is_held and HELD_FRONT or READY_FRONT)
  if not fine or to < from then return from end
  fetch_payloads(far)
  need_lanes()
  need_line()
  fetch(asked)
  local at, first, last, kind = from, from, from - 1, kinds_of[from]
  while at > last and at <= to do   -- those that share a kind and a lane, unless not all of the former could start
    if kinds_of[at] ~= kind then
      start_run(kind, some, raw, first, at - 1)
      first, kind = at, kinds_of[at]
    end
    local spec, lane_end = specs[at], ends[at]
    last = at - 1
    repeat
      last = last + 1
      local other = specs[last + 1]   -- nothing if it is the same
    until last == to or (other and (other ~= spec or ends[last + 1] ~= lane_end or kinds_of[last + 1] ~= kind))
    local lane, row = only_limited(spec, kind[QUEUE])
    if lane then at = start_shared(some, raw, at, last, kind, lane, row, sizes, is_held, lane_end) end
  end
  start_run(kind, some, raw, first, at - 1)
  return at
end
