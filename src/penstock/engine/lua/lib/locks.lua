-- Locks that only one queue uses, as most are. Such a lock belongs to the job that it shows, its owner, until that job
-- has run. So lease need not look at the lock at all. The record of the lock names its owner (lib/lock_owners.lua), and
-- the owner's record begins with OWNER_FRONT instead of READY_FRONT.
--
-- Here enqueue and complete read and write such locks as text, many at once. Any other call decodes the lock
-- (lanes.decode). It is an ordinary lane from then on, until enqueue or complete shows a job of it and makes that its
-- owner.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local counters = require 'counters'
local jobs = require 'jobs'
local lanes = require 'lanes'
local lock_owners = require 'lock_owners'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call
local bytes, hex_pairs = record.bytes, record.hex_pairs

local M = {}

local MAX_FREED = 500   -- locks that one round of show_freed deals with

local stored, texts, freed

function M.reset()
  M.hands_over = false   -- do locks get owners at the end of this call? The verbs that move most jobs say so.
  stored, texts, freed = lanes.stored, lanes.texts, lanes.freed
end

-- enter(name, kind, id) → ready or held: what becomes of a new job of this kind, without a header, that asks for
-- this lock. Nothing if the lane has to be decoded: it is no lock, another queue uses it, or its owner would come
-- after the new job.
function M.enter(name, kind, id)
  local priority, text = kind[PRIORITY], texts[name]
  if priority > 99 or kind[BATCH] ~= '' or #id > 31 or lanes.decoded[name] or record.lane_name(name) ~= name then
    return nil
  end
  local forms = lock_owners.forms(kind[QUEUE])
  if text == nil then text = stored[name] end
  if not text then
    texts[name] = lock_owners.start_of(forms, 0) .. lock_owners.owner_mark(priority, id) .. id
    return 'ready'
  end
  local head_size = forms.head_size
  if #text < head_size + 6 or string.sub(text, 1, head_size) ~= forms.head then return nil end
  local owner_priority = string.byte(text, head_size + 5)
  if owner_priority > priority then return nil end
  local waiting = struct.unpack('>I4', text, head_size + 1)
  texts[name] = lock_owners.start_of(forms, waiting + 1) .. string.sub(text, head_size + 5)
  return 'held'
end

-- free(name, forms, id) → did the lock belong to this job, which has run? It is free, and shows its next waiter at
-- the end.
function M.free(name, forms, id)
  local text, head_size, sub = stored[name], forms.head_size, string.sub
  if not text or sub(text, head_size + 7) ~= id or texts[name] ~= nil or freed[name] then return false end
  local start = sub(text, 1, head_size + 4)
  local turn = forms[start] or lock_owners.turn_of(forms, start)
  if not turn then return false end
  if turn.after then
    freed[name] = turn
    lanes.to_refill[#lanes.to_refill + 1] = name
  else
    texts[name] = false
  end
  return true
end

-- next_of_freed(names, from) → the next waiters of the locks that were freed and follow each other from this
-- position on: as members of `held`, and as ids. A member may belong to another lock or queue, which show_freed
-- notices.
local function next_of_freed(names, from)
  local members, ids, n, sub = {}, {}, 0, string.sub
  for i = from, math.min(#names, from + MAX_FREED - 1) do
    local name = names[i]
    local turn = freed[name]
    if not turn then break end
    local member = call('ZRANGEBYLEX', keys.held, '[' .. name .. turn.row, '+', 'LIMIT', '0', '1')[1]
    if not member then break end
    n = n + 1
    members[n] = member
    ids[n] = sub(member, #name + turn.id_offset)
  end
  return members, ids
end

-- show_freed(names, from) → the position behind the locks that showed their next waiter. They were freed, and
-- follow each other from `from` on. The waiter is their owner now, and stands at the tail of its line, so that lanes
-- take turns. It ends at the first lock whose waiter needs a header, asks for another lane, or is none. From one
-- waiter to the next most of what is written is the same, and is made once.
function M.show_freed(names, from)
  local members, ids = next_of_freed(names, from)
  if #ids == 0 then return from end
  local raw = call('HMGET', keys.jobs, unpack(ids))
  local records = writes.command(2, 'HSET', keys.jobs)
  local exits = writes.command(3, 'ZREM', keys.held)
  local places = writes.command(5, 'ZADD', keys.ready)
  local n_records, n_exits, n_places = records.n, exits.n, places.n
  local sub, numbers, decoded, now = string.sub, struct.unpack, jobs.decoded, request.now
  local front = OWNER_FRONT .. struct.pack(TIME_FORMAT, now)
  local number, at = transition.seq or tonumber(meta.seq or 0), from
  local wait, n_with_wait = 0, 0   -- how long the last waiters waited, and how many of them waited so long
  -- What is the same as for the waiter before,
  local kind, last_label, queue     -- while the label is the same,
  local block, rank_start           -- while the arrival is in the same block of 256: the middle of a member of `held`,
  local line_start, place_start     -- while the place in line is: the start of a member of `ready`, and of the place,
  local mark, id_size               -- while the id is as long: the owner's mark.
  for i = 1, #ids do
    local packed, id, name = raw[i], ids[i], names[at]
    local turn = freed[name]
    if not packed or sub(packed, 1, FRONT) ~= HELD_FRONT or decoded[id] or #id > 31 or #packed < SHORTEST_RECORD then
      break
    end
    local since, size, _, _, label_size, lane_size, rare_size = numbers(SINCE_TO_RARE, packed, SINCE_AT)
    local label_end = SHORTEST_RECORD + label_size
    local label, lane_end = sub(packed, LABEL_AT, label_end), label_end + lane_size
    if rare_size > 0 or #packed < lane_end + ARRIVAL_SIZE then break end
    local arrival = numbers(TIME_FORMAT, packed, lane_end + 1)
    local low = arrival % 256
    if label ~= last_label then
      kind = record.known_kind(label)
      if not kind then break end
      counters.measure('lane', queue, wait, n_with_wait)
      last_label, queue, n_with_wait = label, kind[QUEUE], 0
      block, line_start, id_size = nil, nil, nil
    end
    if arrival - low ~= block then
      block, rank_start = arrival - low, turn.row .. sub(record.rank(kind[PRIORITY], arrival), 1, -3)
    end
    if turn.queue ~= queue or sub(packed, LABEL_AT + label_size, lane_end) ~= name
      or name .. rank_start .. hex_pairs[low] .. SEP .. id ~= members[i]
      or not record.payload_fits(#packed - lane_end - ARRIVAL_SIZE, size) then break end
    number = number + 1
    low = number % 256
    if not line_start or low == 0 then
      line_start = queue .. SEP .. sub(record.rank(kind[PRIORITY], number), 1, -3)
      place_start = sub(struct.pack(TIME_FORMAT, number), 1, -2)
    end
    if #id ~= id_size then mark, id_size = lock_owners.owner_mark(kind[PRIORITY], id), #id end
    n_records = n_records + 2
    records[n_records - 1] = id
    records[n_records] = front .. sub(packed, BODY_AT, SEQ_AT - 1) .. place_start .. bytes[low]
      .. sub(packed, CREATED_AT)
    n_exits = n_exits + 1
    exits[n_exits] = members[i]
    n_places = n_places + 2
    places[n_places - 1] = '0'
    places[n_places] = line_start .. hex_pairs[low] .. SEP .. id
    texts[name] = turn.after .. mark .. id
    freed[name] = nil
    local waited = now - since
    if waited ~= wait then
      counters.measure('lane', queue, wait, n_with_wait)
      wait, n_with_wait = waited, 0
    end
    n_with_wait = n_with_wait + 1
    kind.shown = (kind.shown or 0) + 1
    at = at + 1
  end
  counters.measure('lane', queue, wait, n_with_wait)
  records.n, exits.n, places.n = n_records, n_exits, n_places
  if at > from then transition.seq = number end
  return at
end

-- only_row(lane) → the one queue that it shows or holds jobs of, and its row; nothing if there is none, or another
-- one.
local function only_row(lane)
  local only_queue, row_of_it
  for queue, row in pairs(lane.lines) do
    if row.waiting > 0 or row.shown[1] then
      if only_queue then return nil end
      only_queue, row_of_it = queue, row
    end
  end
  return only_queue, row_of_it
end

-- handed_over(lane) → the record of a lock that from now on belongs to the one job that it shows; nothing if it
-- does not. That job must have no header, and must be shown since this call.
function M.handed_over(lane)
  if lane.rest ~= '' or lane.declared ~= '' or lane.set >= 0 or lane.paused or lane.use ~= 0 then return nil end
  local queue, row = only_row(lane)
  local id = row and not row.shown[2] and row.shown[1]
  local packed = id and #id <= 31 and not jobs.decoded[id] and jobs.rewritten[id]
  if not packed or string.sub(packed, 1, FRONT) ~= READY_FRONT or record.has_rare_fields(packed) then return nil end
  local kind, spec = record.form_in(packed)
  if spec ~= lane.name or kind[QUEUE] ~= queue or kind[PRIORITY] > 99 then return nil end
  writes.put(2, 'HSET', keys.jobs, id, OWNER_FRONT .. string.sub(packed, FRONT + 1))
  local start = lock_owners.start_of(lock_owners.forms(queue), row.waiting)
  return start .. lock_owners.owner_mark(kind[PRIORITY], id) .. id
end

return M
