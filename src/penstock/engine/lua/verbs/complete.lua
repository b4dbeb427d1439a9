-- complete: running → done.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts results
-- ARGV: worker, then per job: id, call number, result ('' for nothing)
-- returns: per job: ok | stale
-- event: complete

-- Most records are as lease left them. Such jobs are completed without a header. Those of one kind that one call leased
-- share what is worked out for the first of them. h is a header.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local batches = require 'batches'
local finish = require 'finish'
local grouped_moves = require 'grouped_moves'
local jobs = require 'jobs'
local lanes = require 'lanes'
local lock_owners = require 'lock_owners'
local locks = require 'locks'
local settle = require 'settle'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

local NO_RESULT, STORED, NOT_KEPT = 0, 1, 2   -- values of RESULT: none, in `results`, thrown away

-- The jobs of the page, by position. The last three are only of jobs that are completed without a header.
local ids, records
local kinds           -- as leased_kind() makes them
local specs           -- the lane that the job asks for, if it asks for one
local form_ends       -- where the form ends in the record

local lease_calls     -- call number → what lease_call_of() found out
local leased_kinds    -- all that leased_kind() made
local done_fronts     -- all that done_front() made
local headers         -- id → header, of jobs that need one though their record is as lease left it
local is_done         -- id → true; a job may be named twice in a page

local new_records, lease_removals, payload_removals, slot_removals, finished_additions   -- pending commands

local function begin()
  ids, records, kinds, specs, form_ends = {}, {}, {}, {}, {}
  lease_calls, leased_kinds, done_fronts, headers, is_done = {}, {}, {}, {}, {}
  new_records = writes.command(2, 'HSET', keys.jobs)
  lease_removals = writes.command(3, 'ZREM', keys.leases)
  payload_removals = writes.command(3, 'HDEL', keys.payloads)
  slot_removals = writes.command(3, 'ZREM', keys.holders)
  finished_additions = writes.command(5, 'ZADD', keys.finished)
end

local function read_page()
  local args = request.args
  for at = 2, request.argc, 3 do ids[(at + 1) / 3] = args[at] end
  if #ids > 0 then records = call('HMGET', keys.jobs, unpack(ids)) end
end

-- lease_call_of(number, packed) → the call of lease with this number, if this record is as that call left it: its
-- claim, how its records begin (`front`), where the claim ends there (`claim_end`), and when the jobs started.
local function lease_call_of(number, packed)
  local lease_call = lease_calls[number]
  if not lease_call then
    local claim = settle.claim_of(number)
    lease_call = { claim = claim, front = record.running_front(claim), claim_end = HEAD_SIZE + RUN_SIZE + #claim }
    if string.sub(packed, CLAIM_AT, lease_call.claim_end) ~= claim then return nil end
    lease_call.started = struct.unpack(TIME_FORMAT, packed, RUN_AT)
    lease_calls[number] = lease_call
  end
  local is_as_left = string.sub(packed, 1, FRONT) == lease_call.front
    and string.sub(packed, CLAIM_AT, lease_call.claim_end) == lease_call.claim
  return is_as_left and lease_call
end

-- leased_kind(lease_call, kind) → what jobs of this kind that this call leased have in common, as a kind of its own.
local function leased_kind(lease_call, kind)
  local leased = { n = 0, waited = 0, group = false, unpack(kind, 1, FIELDS) }
  leased[CLAIM], leased[STARTED] = lease_call.claim, lease_call.started
  leased.kept_until = writes.digits(request.now + kind[KEEP])
  lease_call[kind], leased_kinds[#leased_kinds + 1] = leased, leased
  return leased
end

-- recognise_page() → the names of the lanes of all jobs that can be completed without a header. It finds these jobs
-- and sets their kinds, specs and form_ends. A job mostly has the form of the job before, unless they ask for locks.
local function recognise_page()
  local sub, numbers, args, fits = string.sub, struct.unpack, request.args, record.payload_fits
  local lane_names, n_names = {}, 0
  local kind, label, form, form_size, spec = nil, nil, nil, 0, nil   -- of the job before
  for i = 1, #ids do
    local packed, number = records[i] or '', args[i * 3]
    local lease_call = lease_call_of(number, packed)
    if lease_call then
      local form_at = lease_call.claim_end + BODY_SIZE   -- the byte before it
      local form_end = form_at + form_size + (spec and ARRIVAL_SIZE or 0)   -- nothing if the job has rare fields
      if not form or sub(packed, form_at + 1, form_at + form_size) ~= form then
        form_end = nil
        local label_size, lane_size, rare_size
        if #packed >= form_at + FORM_SIZE then
          label_size, lane_size, rare_size = numbers(FORM_FORMAT, packed, form_at + 1)
        end
        if rare_size == 0 then
          local label_end = form_at + FORM_SIZE + label_size
          local lane_end = label_end + lane_size
          local new_label = sub(packed, form_at + FORM_SIZE + 1, label_end)
          if new_label ~= label then kind, label = record.known_kind(new_label), new_label end
          form, spec, form_end = nil, nil, lane_end
          if lane_size > 0 then
            spec, form_end = sub(packed, label_end + 1, lane_end), lane_end + ARRIVAL_SIZE
            n_names = n_names + 1
            lane_names[n_names] = record.lane_name(spec)
          end
          if kind and (not spec or kind[BATCH] ~= '') then   -- the next job may have the same form
            form, form_size = sub(packed, form_at + 1, lane_end), lane_end - form_at
          end
        end
      end
      if form_end and kind and fits(#packed - form_end, numbers(SIZE_FORMAT, packed, lease_call.claim_end + 1)) then
        kinds[i] = lease_call[kind] or leased_kind(lease_call, kind)
        specs[i] = spec
        form_ends[i] = form_end
      end
    end
  end
  return lane_names
end

-- done_front(result, run_size) → how the record of a job begins that is done now, with a RUN of this size.
local function done_front(result, run_size)
  local n = run_size * 3 + result
  local front = done_fronts[n]
  if not front then
    front = IS_DONE .. string.char(result * RESULT_FLAG, run_size) .. struct.pack(TIME_FORMAT, request.now)
    done_fronts[n] = front
  end
  return front
end

-- keep_result(id, result, keep) → the value of RESULT, once the result is stored, if it is to be kept.
local function keep_result(id, result, keep)
  if result == '' then return NO_RESULT end
  if keep == 0 then return NOT_KEPT end
  writes.set_content(keys.results, id, result)
  return STORED
end

-- free_slots(lane, n): n of its slots are free again.
local function free_slots(lane, n) lane.use = math.max(lane.use - n, 0) end

-- complete_kind(from, answers) → the position after the jobs that it completed: this one, and those behind it that
-- have the same leased kind.
local function complete_kind(from, answers)
  local sub, args, free, finished_ids = string.sub, request.args, locks.free, transition.finished_ids
  local kind, event = kinds[from], grouped_moves.event_of('complete', kinds[from])
  local claim_prefix, keep, kept_until, event_ids = kind[CLAIM] .. SEP, kind[KEEP], kind.kept_until, event[6]
  local run_size = RUN_SIZE + #kind[CLAIM]
  local front_without_result = done_front(NO_RESULT, run_size)
  local forms   -- of locks that this queue uses
  local spec, lane, slot_prefix, n_freed = nil, nil, nil, 0   -- of the job before; the lane if the job had a slot
  local n_records, n_leases, n_slots = new_records.n, lease_removals.n, slot_removals.n
  local n_finished, n_event_ids, n_ids, i = finished_additions.n, event[7], #finished_ids, from
  local n_before = n_ids
  repeat
    local id, packed, form_end = ids[i], records[i], form_ends[i]
    answers[i] = 'ok'
    if not is_done[id] then
      is_done[id] = true
      if specs[i] ~= spec then
        if lane then free_slots(lane, n_freed) end
        spec, lane, n_freed = specs[i], nil, 0
        forms = forms or spec and lock_owners.forms(kind[QUEUE])
      end
      if spec and (lane or not free(spec, forms, id)) then   -- the owner of a lock has no entry in `holders`
        if not lane then
          lane = lanes.of(spec)
          lanes.refill(lane)
          slot_prefix = lane.name .. SEP
        end
        if lane.unlisted == id then lane.unlisted = nil end
        n_freed = n_freed + 1
        n_slots = n_slots + 1
        slot_removals[n_slots] = slot_prefix .. id
      end
      if #packed == form_end then   -- its payload is not part of the record
        payload_removals.n = payload_removals.n + 1
        payload_removals[payload_removals.n] = id
      end
      local result, front = args[i * 3 + 1], front_without_result
      if result ~= '' then front = done_front(keep_result(id, result, keep), run_size) end
      n_records = n_records + 2
      new_records[n_records - 1] = id
      new_records[n_records] = front .. sub(packed, RUN_AT, form_end)
      n_leases = n_leases + 1
      lease_removals[n_leases] = claim_prefix .. id
      n_finished = n_finished + 2
      finished_additions[n_finished - 1] = kept_until
      finished_additions[n_finished] = id
      n_event_ids = n_event_ids + 1
      event_ids[n_event_ids] = id
      n_ids = n_ids + 1
      finished_ids[n_ids] = id
    end
    i = i + 1
  until kinds[i] ~= kind
  if lane then free_slots(lane, n_freed) end
  new_records.n, lease_removals.n, slot_removals.n = n_records, n_leases, n_slots
  finished_additions.n, event[7], kind.n = n_finished, n_event_ids, kind.n + n_ids - n_before
  local batch = kind[BATCH] ~= '' and batches.get(kind[BATCH])
  if batch then batches.leave_all(batch, finished_ids, n_before + 1, n_ids, 'done') end
  return i
end

-- header_as_leased(id, packed, number) → the header of a job whose record is as that call of lease left it.
local function header_as_leased(id, packed, number)
  if not lease_call_of(number, packed) then return nil end
  local h = headers[id] or record.parse(packed)
  headers[id] = h
  return h
end

-- complete_with_header(id, h, at): this job is done. If its record is as lease left it, only the front is written anew.
local function complete_with_header(id, h, at)
  local result, packed = keep_result(id, request.args[at], h[KEEP]), jobs.kept_records[id]
  if not h.payload then writes.delete(keys.payloads, id) end
  if packed then
    packed = done_front(result, string.byte(packed, FRONT)) .. string.sub(packed, RUN_AT, h.to)
  else
    h[RESULT], h[REASON] = result, ''
  end
  transition.move('complete', id, h, 'done', nil, packed)
end

function M.run()
  begin()
  read_page()
  lanes.fetch(recognise_page())
  local answers = settle.settle_page('complete', 3, complete_with_header, header_as_leased, kinds, complete_kind)
  for _, kind in ipairs(leased_kinds) do grouped_moves.move_kind(kind, 'running', 'done') end
  locks.hands_over = true
  finish.write_all()
  return answers
end

return M
