-- Starts jobs without decoding their records, and collects the answer of this call of lease. Jobs of one kind, which
-- have the same label, share what is worked out for the first of them; each job only adds an entry to a few commands.
-- A job that is not recognised here is left to lib/start_each.lua.

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

local claim_prefix           -- how the members of `leases` begin that this call adds
local picked, picked_bytes   -- how many jobs this call starts, and the size of their payloads
local max_bytes              -- of payloads in one answer; a single job may have more
local new_records, ready_removals, lease_additions   -- pending commands for `jobs`, `ready` and `leases`

function M.reset()
  M.claim = request.args[1] .. SEP .. request.args[2]   -- worker and call number: they name the attempts
  M.answer = { 'ok', 0 }       -- 1 instead of 0: the worker should ask again at once
  M.next_members = {}          -- id → member of `held`, of the jobs that lanes would show next
  M.far_payloads = {}          -- id → payload that is not part of its record; false if it is lost
  M.paused = paused_tasks.parse(meta.halted)   -- task → true
  M.first_fence = math.max(tonumber(meta.fence or 0), request.now_us - 1)   -- the last one before this call
  M.fence = M.first_fence      -- the last one that was given out
  M.run_front = record.run_front(M.claim)      -- how a record begins that is leased now, up to its fence
  claim_prefix = M.claim .. SEP
  picked, picked_bytes, max_bytes = 0, 0, tonumber(request.args[5])
  new_records = writes.command(2, 'HSET', keys.jobs)
  ready_removals = writes.command(3, 'ZREM', keys.ready)
  lease_additions = writes.command(5, 'ZADD', keys.leases)
end

-- give(id, packed, payload): adds a job with its record to the answer; the payload is '' if it is part of the record.
function M.give(id, packed, payload)
  local n = #M.answer
  M.answer[n + 1], M.answer[n + 2], M.answer[n + 3] = id, packed, payload
end

-- too_large(size) → would a payload of this size make the answer too large? If not, it is counted as part of it.
function M.too_large(size)
  if picked > 0 and picked_bytes + size > max_bytes then return true end
  picked, picked_bytes = picked + 1, picked_bytes + size
  return false
end

-- fetch_payloads(ids): reads the payloads of these jobs, which are not part of their records.
function M.fetch_payloads(ids)
  if #ids == 0 then return end
  for n, payload in ipairs(call('HMGET', keys.payloads, unpack(ids))) do M.far_payloads[ids[n]] = payload end
end

-- fetch_payloads_from(ids, records, from): the same for all jobs from this position on whose records say so.
local function fetch_payloads_from(ids, records, from)
  local far_ids = {}
  for i = from, #ids do
    local packed = records[i] or ''
    if #packed >= SHORTEST_RECORD and struct.unpack(SIZE_FORMAT, packed, SIZE_AT) >= INLINE then
      far_ids[#far_ids + 1] = ids[i]
    end
  end
  M.fetch_payloads(far_ids)
end

-- add_run(kind, ids, records, from, to): the jobs at these positions, which are of one kind, run now and have these
-- records. In loops over all jobs each statement makes one assignment, because several in one take more steps.
local function add_run(kind, ids, records, from, to)
  if to < from then return end
  local event, queue, count = grouped_moves.event_of('lease', kind), kind[QUEUE], to - from + 1
  local event_ids, answer, payloads = event[6], M.answer, M.far_payloads
  local n_records, n_leases, n_event_ids, n_answer = new_records.n, lease_additions.n, event[7], #answer
  for i = from, to do
    local id, packed = ids[i], records[i]
    n_records = n_records + 2
    new_records[n_records - 1] = id
    new_records[n_records] = packed
    n_leases = n_leases + 2
    lease_additions[n_leases - 1] = '0'
    lease_additions[n_leases] = claim_prefix .. id
    n_event_ids = n_event_ids + 1
    event_ids[n_event_ids] = id
    n_answer = n_answer + 3
    answer[n_answer - 2] = id
    answer[n_answer - 1] = packed
    answer[n_answer] = payloads[id] or ''
  end
  new_records.n, lease_additions.n, event[7] = n_records, n_leases, n_event_ids
  kind.n = kind.n + count
  local quota = candidates.quota
  if quota[queue] then quota[queue] = quota[queue] - count end
end

-- start_alone(ids, records, from, owners) → the position after the jobs that it started. It starts the jobs from this
-- position on that need no look at a lane: they ask for none or, if `owners`, for a lock that belongs to them
-- (lib/locks.lua). It puts their new records into `records`.
function M.start_alone(ids, records, from, owners)
  local sub, numbers, count, now, claim = string.sub, struct.unpack, #ids, request.now, M.claim
  local members, decoded, payloads = jobs.ready_members, jobs.decoded, M.far_payloads
  local old_front = owners and OWNER_FRONT or READY_FRONT
  local new_front                          -- how 256 new records in a row begin, up to the last byte of the fence
  local label, form, form_to, kind, kind_from   -- of the job before; where its form ends and its kind began
  local wait, n_alike = 0, 0               -- how long the job before waited, and how many jobs waited so long
  local n_removals, n_picked, n_bytes, fence, i = ready_removals.n, picked, picked_bytes, M.fence, from
  while i <= count do
    local id, packed = ids[i], records[i]
    if not packed or #packed < SHORTEST_RECORD or sub(packed, 1, FRONT) ~= old_front or decoded[id] then break end
    if owners and jobs.rewritten[id] then break end   -- its lock was taken apart
    local since, size = numbers(SINCE_AND_SIZE, packed, SINCE_AT)
    local to = form_to
    if not form or sub(packed, FORM_AT, to) ~= form then   -- another form, and maybe another kind
      local label_size, lane_size, rare_size = numbers(FORM_FORMAT, packed, FORM_AT)
      if rare_size > 0 or (lane_size > 0) ~= owners then break end
      to = SHORTEST_RECORD + label_size + lane_size + (owners and ARRIVAL_SIZE or 0)
      local new_label = sub(packed, LABEL_AT, SHORTEST_RECORD + label_size)
      if new_label ~= label then
        local new_kind = record.known_kind(new_label)
        if not new_kind or M.paused[new_kind[TASK]] then break end
        if kind then
          counters.measure('wait', kind[QUEUE], wait, n_alike)
          add_run(kind, ids, records, kind_from, i - 1)
          n_alike = 0
        end
        label, kind, kind_from = new_label, new_kind, i
        if not owners then form, form_to = kind.form, to end   -- the forms of owners differ in their locks
      end
    end
    if #packed - to ~= size or size >= INLINE then   -- the payload is not part of the record
      if not record.payload_fits(#packed - to, size) then break end
      if payloads[id] == nil then fetch_payloads_from(ids, records, i) end
      if not payloads[id] then break end
    end
    if n_picked > 0 and n_bytes + size > max_bytes then break end
    n_picked = n_picked + 1
    n_bytes = n_bytes + size
    if now - since ~= wait then
      counters.measure('wait', kind[QUEUE], wait, n_alike)
      wait, n_alike = now - since, 0
    end
    n_alike = n_alike + 1
    n_removals = n_removals + 1
    ready_removals[n_removals] = members[id]
    fence = fence + 1
    local low = fence % 256
    if low == 0 or not new_front then new_front = M.run_front .. sub(struct.pack(FENCE_FORMAT, fence), 1, -2) end
    records[i] = new_front .. bytes[low] .. claim .. sub(packed, BODY_AT)
    i = i + 1
  end
  ready_removals.n, picked, picked_bytes, M.fence = n_removals, n_picked, n_bytes, fence
  if kind then
    counters.measure('wait', kind[QUEUE], wait, n_alike)
    add_run(kind, ids, records, kind_from, i - 1)
  end
  return i
end

-- find_laned(ids, records, from, front) → the jobs from this position on whose records begin so, that ask for one
-- lane each and have no rare field:
--   `to`                       the position of the last one; from - 1 if there is none
--   `sinces`, `sizes`          by position: since when it waits, and the size of its payload
--   `kinds`, `specs`, `ends`   by position: its kind, its lane, and where that ends in the record; nothing if all three
--                              are those of the job before
--   `far_ids`                  the jobs whose payload is not part of their record
--   `lane_names`               the names of all these lanes
local function find_laned(ids, records, from, front)
  local sub, numbers, count, decoded = string.sub, struct.unpack, #ids, jobs.decoded
  local sinces, sizes, kinds, specs, ends, far_ids, lane_names = {}, {}, {}, {}, {}, {}, {}
  local form, lane_end   -- of the job before; without a form if the next job most likely has another one
  local i = from
  while i <= count do
    local packed = records[i]
    if not packed or #packed < SHORTEST_RECORD or sub(packed, 1, FRONT) ~= front or decoded[ids[i]] then break end
    if not form or sub(packed, FORM_AT, lane_end) ~= form then   -- maybe another lane or kind
      local label_size, lane_size, rare_size = numbers(FORM_FORMAT, packed, FORM_AT)
      if lane_size == 0 or rare_size > 0 then break end
      local label_end = SHORTEST_RECORD + label_size
      lane_end = label_end + lane_size
      local kind, spec = record.known_kind(sub(packed, LABEL_AT, label_end)), sub(packed, label_end + 1, lane_end)
      if not kind or M.paused[kind[TASK]] then break end
      local name = record.lane_name(spec)
      local is_of_batch = kind[BATCH] ~= '' and name ~= spec   -- this may be the lane of the batch: it is no lock
      form = is_of_batch and sub(packed, FORM_AT, lane_end)
      kinds[i], specs[i], ends[i], lane_names[#lane_names + 1] = kind, spec, lane_end, name
    end
    local since, size = numbers(SINCE_AND_SIZE, packed, SINCE_AT)
    local left = #packed - lane_end - ARRIVAL_SIZE
    if left ~= size or size >= INLINE then   -- the payload is not part of the record
      if not record.payload_fits(left, size) then break end
      far_ids[#far_ids + 1] = ids[i]
    end
    sinces[i] = since
    sizes[i] = size
    i = i + 1
  end
  return {
    to = i - 1, sinces = sinces, sizes = sizes, kinds = kinds, specs = specs, ends = ends,
    far_ids = far_ids, lane_names = lane_names,
  }
end

-- end_of_lane(laned, from) → the position of the last job that follows this one with the same kind and lane.
local function end_of_lane(laned, from)
  local kinds, specs, ends, last = laned.kinds, laned.specs, laned.ends, from
  while last < laned.to do
    local spec = specs[last + 1]
    if spec and (spec ~= specs[from] or ends[last + 1] ~= ends[from] or kinds[last + 1] ~= kinds[from]) then break end
    last = last + 1
  end
  return last
end

-- start_in_lane(ids, records, from, to, laned, lane, is_held) → the position after the jobs that it started. It
-- starts the jobs from one position to the other, which are of one kind and which this lane shows or holds, as long as
-- the lane has slots and the answer has room. It puts their new records into `records`.
local function start_in_lane(ids, records, from, to, laned, lane, is_held)
  local sub, numbers, now, claim, payloads = string.sub, struct.unpack, request.now, M.claim, M.far_payloads
  local kind, lane_end, sinces, sizes = laned.kinds[from], laned.ends[from], laned.sinces, laned.sizes
  local queue, priority = kind[QUEUE], kind[PRIORITY]
  local slot_prefix, row_name, row = lane.name .. SEP, lane.name .. SEP .. queue .. SEP, lanes.row(lane, queue)
  local members, what = jobs.ready_members, 'wait'
  local slots, removals = writes.command(5, 'ZADD', keys.holders), ready_removals
  if is_held then
    members, what, removals = M.next_members, 'lane', writes.command(3, 'ZREM', keys.held)
  end
  local wait, n_alike = 0, 0   -- how long the job before waited, and how many jobs waited so long
  local block, block_start     -- 256 arrivals in a row, and how the members of `held` with one of them begin
  local new_front              -- how 256 new records in a row begin, up to the last byte of the fence
  local free, waiting, shown, shows_more = lane.limit - lane.use, row.waiting, row.shown, false
  local n_slots, n_removals, n_picked, n_bytes, fence, i = slots.n, removals.n, picked, picked_bytes, M.fence, from
  while i <= to and free >= 1 do
    local id, packed, size = ids[i], records[i], sizes[i]
    local member = members[id]
    if is_held then   -- is it the member that the record says?
      local arrival = numbers(TIME_FORMAT, packed, lane_end + 1)
      local low = arrival % 256
      if arrival - low ~= block then
        block, block_start = arrival - low, row_name .. sub(record.rank(priority, arrival), 1, -3)
      end
      if member ~= block_start .. hex_pairs[low] .. SEP .. id then break end
    end
    if payloads[id] == false or (n_picked > 0 and n_bytes + size > max_bytes) then break end
    n_picked = n_picked + 1
    n_bytes = n_bytes + size
    if is_held then waiting = waiting - 1 else lanes.unshow(row, id) end
    free = free - 1
    if not shows_more and waiting > 0 and free > #shown then shows_more = true end
    n_slots = n_slots + 2
    slots[n_slots - 1] = '0'
    slots[n_slots] = slot_prefix .. id
    n_removals = n_removals + 1
    removals[n_removals] = member
    local waited = now - sinces[i]
    if waited ~= wait then
      counters.measure(what, queue, wait, n_alike)
      wait, n_alike = waited, 0
    end
    n_alike = n_alike + 1
    fence = fence + 1
    local low = fence % 256
    if low == 0 or not new_front then new_front = M.run_front .. sub(struct.pack(FENCE_FORMAT, fence), 1, -2) end
    records[i] = new_front .. bytes[low] .. claim .. sub(packed, BODY_AT)
    i = i + 1
  end
  counters.measure(what, queue, wait, n_alike)
  slots.n, removals.n, picked, picked_bytes, M.fence = n_slots, n_removals, n_picked, n_bytes, fence
  lane.use = lane.use + i - from
  if shows_more then lanes.refill(lane) end
  if is_held and i > from then
    row.waiting, kind.waited = waiting, kind.waited + i - from
    lane_waiters.have_left(removals, n_removals - i + from + 1, n_removals, row_name)
  end
  return i
end

-- start_laned(ids, records, from, state) → the position after the jobs that it started. It starts the jobs from this
-- position on that ask for one lane each, which shows them (state `ready`) or holds them (`held`). It stops at a lane
-- that has no room, or that needs a closer look because of its rate or order.
function M.start_laned(ids, records, from, state)
  local is_held = state == 'held'
  local laned = find_laned(ids, records, from, is_held and HELD_FRONT or READY_FRONT)
  if laned.to < from then return from end
  M.fetch_payloads(laned.far_ids)
  lanes.fetch(laned.lane_names)
  local kind, kind_from, i = laned.kinds[from], from, from
  while i <= laned.to do
    if laned.kinds[i] ~= kind then
      add_run(kind, ids, records, kind_from, i - 1)
      kind, kind_from = laned.kinds[i], i
    end
    local lane = grouped_moves.limited_lane(laned.specs[i], kind[QUEUE])
    if not lane then break end
    local last = end_of_lane(laned, i)
    i = start_in_lane(ids, records, i, last, laned, lane, is_held)
    if i <= last then break end
  end
  add_run(kind, ids, records, kind_from, i - 1)
  return i
end

return M
