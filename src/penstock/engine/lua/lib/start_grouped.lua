-- What lease gives to a worker, and the start of those jobs that have no header.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local candidates = require 'candidates'
local counters = require 'counters'
local grouped_moves = require 'grouped_moves'
local jobs = require 'jobs'
local lane_waiters = require 'lane_waiters'
local lanes = require 'lanes'
local paused_tasks = require 'paused_tasks'
local writes = require 'writes'
local call = request.call
local bytes, hex_pairs = record.bytes, record.hex_pairs

local M = {}

local picked, size, max_size, claim_head, records, places, holds

function M.reset()
  M.claim = request.args[1] .. SEP .. request.args[2]
  M.answer = { 'ok', 0 }
  picked, size, max_size = 0, 0, tonumber(request.args[5])   -- jobs and their payloads so far, and at most
  M.next_members = {}   -- id → member of `held`, of those that a lane would show next
  M.paused = paused_tasks.parse(meta.halted)
  M.first_fence = math.max(tonumber(meta.fence or 0), request.now_us - 1)
  M.fence = M.first_fence
  claim_head, M.run_front = M.claim .. SEP, record.run_front(M.claim)
  M.far_payloads = {}   -- id → its payload, or false if it is lost
  records, places, holds = writes.command(2, 'HSET', keys.jobs), writes.command(3, 'ZREM', keys.ready), writes.command(5, 'ZADD', keys.leases)
end

function M.give(id, packed, payload)
  local n = #M.answer
  M.answer[n + 1], M.answer[n + 2], M.answer[n + 3] = id, packed, payload
end

-- too_large(bulk) → would this one make the answer too big? Otherwise it is counted.
function M.too_large(bulk)
  if picked > 0 and size + bulk > max_size then return true end
  picked, size = picked + 1, size + bulk
  return false
end

-- fetch_payloads(ids): those that are not part of their records.
function M.fetch_payloads(ids)
  if #ids == 0 then return end
  for n, payload in ipairs(call('HMGET', keys.payloads, unpack(ids))) do M.far_payloads[ids[n]] = payload end
end

-- start_run(kind, some, packed, from, to): these, which are of one kind, run; what is stored of them is in packed. Here and
-- where else every job comes by, one assignment at a time: several at once take more steps.
local function start_run(kind, some, packed, from, to)
  if to < from then return end
  local one, queue, many = grouped_moves.event_of('lease', kind), kind[QUEUE], to - from + 1
  local told, answer, far, a, b, c, d = one[6], M.answer, M.far_payloads, records.n, holds.n, one[7], #M.answer
  for i = from, to do
    local id, leased = some[i], packed[i]
    a = a + 2
    records[a - 1] = id
    records[a] = leased
    b = b + 2
    holds[b - 1] = '0'
    holds[b] = claim_head .. id
    c = c + 1
    told[c] = id
    d = d + 3
    answer[d - 2] = id
    answer[d - 1] = leased
    answer[d] = far[id] or ''
  end
  records.n, holds.n, one[7], kind.n = a, b, c, kind.n + many
  if candidates.quota[queue] then candidates.quota[queue] = candidates.quota[queue] - many end
end

-- fetch_far(some, raw, from): the payloads of those from here on that are not part of their records, as far as these tell.
local function fetch_far(some, raw, from)
  local far = {}
  for i = from, #some do
    local packed = raw[i] or ''
    if #packed >= SHORTEST_RECORD and struct.unpack(SIZE_FORMAT, packed, SIZE_AT) >= INLINE then far[#far + 1] = some[i] end
  end
  M.fetch_payloads(far)
end

-- start_alone(some, raw, from, owners) → the position after those, from here on, that need no look at any lane; these run. They have
-- none or, where owners are meant, a lock that is their own (lib/locks.lua).
function M.start_alone(some, raw, from, owners)
  local sub, numbers, count, first, n, bulk = string.sub, struct.unpack, #some, from, places.n, size
  local i, begins = from, owners and OWNER_FRONT or READY_FRONT
  local label, form, form_to, kind, front   -- of the last ones
  local wait, alike = 0, 0   -- so long waited the last ones, so many of them
  local now, members, decoded, far, claim, fence = request.now, jobs.ready_members, jobs.decoded, M.far_payloads, M.claim, M.fence
  while i <= count do
    local id, packed = some[i], raw[i]
    if not packed or decoded[id] or sub(packed, 1, FRONT) ~= begins or #packed < SHORTEST_RECORD then break end
    if owners and jobs.rewritten[id] then break end   -- its lock was taken apart
    local since, many = numbers(SINCE_AND_SIZE, packed, SINCE_AT)
    local to = form_to
    if not form or sub(packed, FORM_AT, to) ~= form then
      local label_size, lane_size, rare_size = numbers(FORM_FORMAT, packed, FORM_AT)
      local text = sub(packed, LABEL_AT, SHORTEST_RECORD + label_size)
      if rare_size > 0 or (lane_size > 0) ~= owners then break end
      to = SHORTEST_RECORD + label_size + lane_size + (owners and ARRIVAL_SIZE or 0)
      if text ~= label then
        local other = record.known_kind(text)
        if not other or M.paused[other[TASK]] then break end
        if kind then
          counters.measure('wait', kind[QUEUE], wait, alike)
          start_run(kind, some, raw, first, i - 1)
          alike = 0
        end
        first, kind, label = i, other, text
        if not owners then form, form_to = other.form, to end   -- owners differ in their locks
      end
    end
    if #packed - to ~= many or many >= INLINE then
      if not record.payload_fits(#packed - to, many) then break end
      if far[id] == nil then fetch_far(some, raw, i) end
      if not far[id] then break end
    end
    if picked > 0 and bulk + many > max_size then break end
    picked = picked + 1
    bulk = bulk + many
    local waited = now - since
    if waited ~= wait then
      counters.measure('wait', kind[QUEUE], wait, alike)
      wait, alike = waited, 0
    end
    alike = alike + 1
    n = n + 1
    places[n] = members[id]
    fence = fence + 1
    local last_byte = fence % 256
    if last_byte == 0 or not front then front = M.run_front .. sub(struct.pack(FENCE_FORMAT, fence), 1, -2) end
    raw[i] = front .. bytes[last_byte] .. claim .. sub(packed, BODY_AT)
    i = i + 1
  end
  places.n, size, M.fence = n, bulk, fence
  if kind then
    counters.measure('wait', kind[QUEUE], wait, alike)
    start_run(kind, some, raw, first, i - 1)
  end
  return i
end

-- lanes_from(some, raw, from, mark) → the position of the last one with a lane that is in order; where they differ from the one
-- before: kind, lane, and where that ends; how big their payloads are, those whose payload is elsewhere, and the names of lanes.
local function lanes_from(some, raw, from, mark)
  local found, specs, ends, sizes, asked, far, sub, numbers, to = {}, {}, {}, {}, {}, {}, string.sub, struct.unpack, #some
  local kind, spec, at, alike, alike_to
  local decoded, fits = jobs.decoded, record.payload_fits
  for i = from, to do
    local packed = raw[i]
    if not packed or sub(packed, 1, FRONT) ~= mark or decoded[some[i]] or #packed < SHORTEST_RECORD then to = i - 1 break end
    local many, label_size, lane_size, rare_size = numbers(SIZE_FORMAT, packed, BODY_AT), numbers(FORM_FORMAT, packed, FORM_AT)
    if lane_size == 0 or rare_size > 0 then to = i - 1 break end
    at = SHORTEST_RECORD + label_size + lane_size
    if not alike or at ~= alike_to or sub(packed, LABEL_AT, at) ~= alike then
      kind, spec = record.known_kind(sub(packed, LABEL_AT, SHORTEST_RECORD + label_size)), sub(packed, LABEL_AT + label_size, at)
      if not kind or M.paused[kind[TASK]] then to = i - 1 break end
      local name = record.lane_name(spec)
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
  local slots, exits = writes.command(5, 'ZADD', keys.holders), writes.command(3, 'ZREM', is_held and keys.held or keys.ready)
  local members = is_held and M.next_members or jobs.ready_members
  local slot_head, priority = lane.name .. SEP, kind[PRIORITY]
  local what, queue, wait, alike = is_held and 'lane' or 'wait', kind[QUEUE], 0, 0   -- so long waited the last ones, so many of them
  local line_head = slot_head .. queue .. SEP
  local a, b, free, left, shown, at = slots.n, exits.n, lane.limit - lane.use, row.waiting, row.shown, from
  local sub, numbers, many, bulk, shows_more, front, block, start = string.sub, struct.unpack, picked, size, false, nil, nil, nil
  local now, claim, fence, distant = request.now, M.claim, M.fence, M.far_payloads
  while at <= to and free >= 1 do
    local id, packed = some[at], raw[at]
    local since = numbers(TIME_FORMAT, packed, SINCE_AT)
    local member, waited = members[id], now - since
    if is_held then   -- is it this one that the lane would show next?
      local number = numbers(TIME_FORMAT, packed, lane_end + 1)   -- its arrival
      local low = number % 256
      if number - low ~= block then
        block, start = number - low, line_head .. sub(record.rank(priority, number), 1, -3)
      end
      if member ~= start .. hex_pairs[low] .. SEP .. id then break end
    end
    if distant[id] == false or (many > 0 and bulk + sizes[at] > max_size) then break end
    many = many + 1
    bulk = bulk + sizes[at]
    if is_held then left = left - 1 else lanes.unshow(row, id) end
    free = free - 1
    if not shows_more and left > 0 and free > #shown then shows_more = true end
    a = a + 2
    slots[a - 1] = '0'
    slots[a] = slot_head .. id
    b = b + 1
    exits[b] = member
    if waited ~= wait then
      counters.measure(what, queue, wait, alike)
      wait, alike = waited, 0
    end
    alike = alike + 1
    fence = fence + 1
    local last_byte = fence % 256
    if last_byte == 0 or not front then front = M.run_front .. sub(struct.pack(FENCE_FORMAT, fence), 1, -2) end
    raw[at] = front .. bytes[last_byte] .. claim .. sub(packed, BODY_AT)
    at = at + 1
  end
  counters.measure(what, queue, wait, alike)
  slots.n, exits.n, lane.use, picked, size, M.fence = a, b, lane.use + at - from, many, bulk, fence
  if shows_more then lanes.refill(lane) end
  if is_held then
    row.waiting, kind.waited = left, kind.waited + at - from
    if at > from then lane_waiters.have_left(exits, b - at + from + 1, b, line_head) end
  end
  return at
end

-- start_laned(some, raw, from, state) → the same for those with a lane, which shows or holds them.
function M.start_laned(some, raw, from, state)
  local is_held = state == 'held'
  local fine, to, kinds_of, specs, ends, sizes, far, asked = pcall(lanes_from, some, raw, from, is_held and HELD_FRONT or READY_FRONT)
  if not fine or to < from then return from end
  M.fetch_payloads(far)
  lanes.fetch(asked)
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
    local lane, row = grouped_moves.limited_lane(spec, kind[QUEUE])
    if lane then at = start_shared(some, raw, at, last, kind, lane, row, sizes, is_held, lane_end) end
  end
  start_run(kind, some, raw, first, at - 1)
  return at
end

return M
