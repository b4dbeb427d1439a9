-- Locks that one queue uses, as most are. Such a lock belongs to the job that it shows, from when that is shown until it has run,
-- so that lease need not look at the lock at all. What is stored of the lock is what any lane would store that shows this job,
-- but -1 for how many are in use, and how many wait in five bytes; what is stored of the job begins with OWNER_FRONT instead of
-- READY_FRONT. Here it is read and written as text. Whoever else has to do with it takes it apart (lane_apart in lib/lanes.lua): then
-- it is like any other lane, until enqueue or complete shows a job of it anew.

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

function M.reset()
  M.hands_over = false   -- may a lock that is free belong to the job that it shows next? Those that move most jobs say so.
end

-- writes.add_later(name, kind, id) → ready or held: what becomes of a new job without a header that asks for this lock. Nothing if that is
-- for others to say: it is another lane, or another queue uses it, or the job would come before the owner.
function M.enter(name, kind, id)
  local priority, text = kind[PRIORITY], lanes.texts[name]
  if priority > 99 or kind[BATCH] ~= '' or #id > 31 or lanes.decoded[name] or record.lane_name(name) ~= name then return nil end
  local forms = lock_owners.forms(kind[QUEUE])
  if text == nil then text = lanes.stored[name] end
  if not text then
    lanes.texts[name] = lock_owners.start_of(forms, 0) .. lock_owners.owner_mark(priority, id) .. id
    return 'ready'
  end
  if #text < forms.at + 6 or string.sub(text, 1, forms.at) ~= forms.head then return nil end
  if string.byte(text, forms.at + 5) > priority then return nil end
  lanes.texts[name] = lock_owners.start_of(forms, struct.unpack('>I4', text, forms.at + 1) + 1) .. string.sub(text, forms.at + 5)
  return 'held'
end

-- free(name, forms, id) → was this job the owner? The lock is free, and will show its next waiter.
function M.free(name, forms, id)
  local text, at, sub = lanes.stored[name], forms.at, string.sub
  if not text or sub(text, at + 7) ~= id or lanes.texts[name] ~= nil or lanes.freed[name] then return false end
  local start = sub(text, 1, at + 4)
  local turn = forms[start] or lock_owners.turn_of(forms, start)
  if not turn then return false end
  if turn.after then
    lanes.freed[name] = turn
    lanes.to_refill[#lanes.to_refill + 1] = name
  else
    lanes.texts[name] = false
  end
  return true
end

-- next_of_freed(names, from) → the next waiters of locks that were freed, from this one on: as members of `held`, and as ids.
local function next_of_freed(names, from)
  local members, ids, n, sub = {}, {}, 0, string.sub
  for i = from, math.min(#names, from + 499) do
    local name = names[i]
    local turn = lanes.freed[name]
    if not turn then break end
    local member = call('ZRANGEBYLEX', keys.held, '[' .. name .. turn.row, '+', 'LIMIT', '0', '1')[1]   -- of another row: not recognised
    if not member then break end
    n = n + 1
    members[n] = member
    ids[n] = sub(member, #name + turn.behind)
  end
  return members, ids
end

-- show_freed(names, from) → the position after those locks, from this one on, that were freed and show their next waiters now:
-- at the tail of their line, so that lanes take turns. Up to the first of which anything is not as it should be: the waiter has no
-- header and asks for that lock alone. From one to the next little of what is written differs.
function M.show_freed(names, from)
  local members, ids = next_of_freed(names, from)
  if #ids == 0 then return from end
  local raw, records, exits, places = call('HMGET', keys.jobs, unpack(ids)), writes.command(2, 'HSET', keys.jobs), writes.command(3, 'ZREM', keys.held), writes.command(5, 'ZADD', keys.ready)
  local a, b, c, sub, numbers = records.n, exits.n, places.n, string.sub, struct.unpack
  local front, place_start = OWNER_FRONT .. struct.pack(TIME_FORMAT, request.now), nil
  local number, at = transition.seq or tonumber(meta.seq or 0), from
  local wait, alike = 0, 0   -- so long waited the last ones, so many of them
  local kind, label, queue, mark, size, block, rank_start, line_head
  for i = 1, #ids do
    local packed, id, name = raw[i], ids[i], names[at]
    local turn = lanes.freed[name]
    if not packed or sub(packed, 1, FRONT) ~= HELD_FRONT or jobs.decoded[id] or #id > 31 or #packed < SHORTEST_RECORD then break end
    local since, many, _, _, label_size, lane_size, rare_size = numbers(SINCE_TO_RARE, packed, SINCE_AT)
    local text, to = sub(packed, LABEL_AT, SHORTEST_RECORD + label_size), SHORTEST_RECORD + label_size + lane_size
    if rare_size > 0 or #packed < to + ARRIVAL_SIZE then break end
    local arrival = numbers(TIME_FORMAT, packed, to + 1)
    local low = arrival % 256
    if text ~= label then
      kind = record.known_kind(text)
      if not kind then break end
      counters.measure('lane', queue, wait, alike)
      label, queue, alike = text, kind[QUEUE], 0
      block, line_head, size = nil, nil, nil
    end
    if arrival - low ~= block then
      block, rank_start = arrival - low, turn.row .. sub(record.rank(kind[PRIORITY], arrival), 1, -3)
    end
    if turn.queue ~= queue or sub(packed, LABEL_AT + label_size, to) ~= name
      or name .. rank_start .. hex_pairs[low] .. SEP .. id ~= members[i]
      or not record.payload_fits(#packed - to - ARRIVAL_SIZE, many) then break end
    number = number + 1
    low = number % 256
    if not line_head or low == 0 then
      line_head, place_start = queue .. SEP .. sub(record.rank(kind[PRIORITY], number), 1, -3), sub(struct.pack(TIME_FORMAT, number), 1, -2)
    end
    if #id ~= size then mark, size = lock_owners.owner_mark(kind[PRIORITY], id), #id end
    a = a + 2
    records[a - 1] = id
    records[a] = front .. sub(packed, BODY_AT, SEQ_AT - 1) .. place_start .. bytes[low] .. sub(packed, CREATED_AT)
    b = b + 1
    exits[b] = members[i]
    c = c + 2
    places[c - 1] = '0'
    places[c] = line_head .. hex_pairs[low] .. SEP .. id
    lanes.texts[name] = turn.after .. mark .. id
    lanes.freed[name] = nil
    local waited = request.now - since
    if waited ~= wait then
      counters.measure('lane', queue, wait, alike)
      wait, alike = waited, 0
    end
    alike = alike + 1
    kind.shown = (kind.shown or 0) + 1
    at = at + 1
  end
  counters.measure('lane', queue, wait, alike)
  transition.seq, records.n, exits.n, places.n = at > from and number or transition.seq, a, b, c
  return at
end

-- only_row(lane) → the one queue that it shows or holds jobs of, and these. Nothing if there is none, or another.
local function only_row(lane)
  local found, used
  for queue, row in pairs(lane.lines) do
    if row.waiting > 0 or row.shown[1] then
      if found then return nil end
      found, used = queue, row
    end
  end
  return found, used
end

-- handed_over(lane) → what is stored of a lock that is free and shows a job without a header since this call: it is the owner.
function M.handed_over(lane)
  if lane.rest ~= '' or lane.declared ~= '' or lane.set >= 0 or lane.paused or lane.use ~= 0 then return nil end
  local queue, row = only_row(lane)
  local id = row and not row.shown[2] and row.shown[1]
  local packed = id and #id <= 31 and not jobs.decoded[id] and jobs.rewritten[id]
  if not packed or string.sub(packed, 1, FRONT) ~= READY_FRONT or record.has_rare_fields(packed) then return nil end
  local kind, spec = record.form_in(packed)
  if spec ~= lane.name or kind[QUEUE] ~= queue or kind[PRIORITY] > 99 then return nil end
  writes.put(2, 'HSET', keys.jobs, id, OWNER_FRONT .. string.sub(packed, FRONT + 1))
  return lock_owners.start_of(lock_owners.forms(queue), row.waiting) .. lock_owners.owner_mark(kind[PRIORITY], id) .. id
end

return M
