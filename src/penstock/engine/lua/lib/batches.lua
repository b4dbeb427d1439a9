-- Batches: who is a member, and how many members have ended in which state.
--
-- b is a batch: a table of B_FIELDS values in the order of BatchState (model/batch_state.py), and these:
--   b.id                its id
--   b.member_died       set when a member died in this call
--   b.member_finished   set when a member, or the batch itself, finished in this call
-- h is the header of a job.
--
-- A member is a job, or another batch. The name of a job is its id. The name of a batch is { and its id, which no job
-- can have.
-- The key `roster` has these entries:
--   batch SEP u SEP name                       for each unfinished member
--   batch SEP f SEP finish number SEP name     for each finished member
--   batch SEP x SEP name                       for each dead member, too
--   batch SEP c SEP name                       for each cancelled member, too
-- All numbers of a batch can be counted from these entries.

local request = require 'request'
local keys = require 'keys'
local jobs = require 'jobs'
local lanes = require 'lanes'
local writes = require 'writes'
local call = request.call

local M = {}

-- Outcome of a member → the field of its batch that counts such members; the letter of its second entry in `roster`.
local counter_of = { done = B_DONE, dead = B_DEAD, cancelled = B_CANCELLED }
local letter_of = { dead = 'x', cancelled = 'c' }

local is_unfinished = { ready = true, held = true, scheduled = true, running = true }   -- states of jobs

-- two_digits[n] → n as text with two digits, made once.
local two_digits = setmetatable({}, { __index = function(known, n)
  known[n] = string.format('%02d', n)
  return known[n]
end })

local known_batches

function M.reset()
  M.touched = {}       -- list of ids of the batches that changed; also id → batch
  known_batches = {}   -- id → batch, as read and changed by this call; false if there is none
end

-- member(id, letter, name) → an entry of `roster` that has no finish number.
function M.member(id, letter, name) return id .. SEP .. letter .. SEP .. name end

-- numbered(id, number, name) → the entry of a finished member.
function M.numbered(id, number, name)
  return id .. SEP .. 'f' .. SEP .. string.format('%016d', number) .. SEP .. name
end

-- Reading batches.

-- check_types(b): raises an error if a field is missing, or has another type than a number or a string.
local function check_types(b)
  local _ = b[B_CREATED] + b[B_ADDED] + b[B_ENDED]
    + b[B_TOTAL] + b[B_DONE] + b[B_DEAD] + b[B_CANCELLED] + b[B_FINISHES]
    + b[B_GENERATION] + b[B_FAILED] + b[B_FINISH]
    + b[B_PRIORITY] + b[B_LIMIT] + b[B_DEPTH] + b[B_ABANDON_AFTER] + b[B_KEEP]
    + #b[B_PHASE] + #b[B_NAME] + #b[B_PARENT] + #b[B_REASON] + #b[B_OUTCOME]
    + #b[B_CHORE] + #b[B_CURSOR] + #b[B_RETRIED]
end

-- get(id) → the batch; nothing if there is none, or if its record cannot be read.
function M.get(id)
  local b = known_batches[id]
  if b == nil then
    b = lanes.unpack_list(call('HGET', keys.batches, 'state' .. SEP .. id))
    if pcall(check_types, b) then b.id = id else b = false end
    known_batches[id] = b
  end
  return b or nil
end

-- of_member(id, created) → the batch with this id, if something that was made at this time can be its member.
-- What is older than the batch was a member of a forgotten batch that had the same id.
function M.of_member(id, created)
  local b = id ~= '' and M.get(id)
  return b and b[B_CREATED] <= created and b or nil
end

-- since(id) → the creation time of a member that comes now: not before its batch, even if the clock was set back.
function M.since(id) return math.max(request.now, M.get(id)[B_CREATED]) end

-- pending(b) → how many members are unfinished.
function M.pending(b) return b[B_TOTAL] - b[B_DONE] - b[B_DEAD] - b[B_CANCELLED] end

-- refusal(b) → why it takes no members: unknown | ended | cancelled | sealed; nothing if it takes them. b may be nil.
function M.refusal(b)
  if not b then return 'unknown' end
  if b[B_PHASE] == 'open' then return nil end
  return b[B_PHASE] == 'ended' and 'ended' or b[B_REASON] ~= '' and 'cancelled' or 'sealed'
end

-- Changing batches. batch_end.lua stores each batch that was touched.

-- add(b): this new batch exists from now on.
function M.add(b) known_batches[b.id] = b end

-- touch(b): this batch has changed.
function M.touch(b)
  if not M.touched[b.id] then
    M.touched[b.id] = b
    M.touched[#M.touched + 1] = b.id
  end
end

-- apply_to(h): gives a job that is to be a member the priority of its batch, and the batch's lane before all others.
function M.apply_to(h)
  local b = M.get(h[BATCH])
  if not b then return end
  if b[B_PRIORITY] >= 0 then h[PRIORITY] = b[B_PRIORITY] end
  local limit = b[B_LIMIT] >= 0 and b[B_LIMIT] or ''
  local lane = 'batch:' .. b.id .. SEP .. limit .. SEP .. SEP .. SEP .. SEP .. '1'   -- see record.lane_name
  h[LANES] = { lane, unpack(h[LANES]) }
end

-- join(b, name): adds a member.
function M.join(b, name)
  b[B_TOTAL], b[B_ADDED] = b[B_TOTAL] + 1, request.now
  writes.add(keys.roster, '0', M.member(b.id, 'u', name))
  M.touch(b)
end

-- leave(b, name, outcome) → the finish number of this member, which has finished.
function M.leave(b, name, outcome) return M.leave_all(b, { name }, 1, 1, outcome) end

-- leave_all(b, names, first, last, outcome) → the finish number of names[last]. All members from names[first] to
-- names[last] have finished.
-- Their entries are written with the contents, before the records. So wherever the script is stopped, a member whose
-- record says that it is finished has its entry. Most finish numbers differ from the one before in two digits.
function M.leave_all(b, names, first, last, outcome)
  local number, counter, letter = b[B_FINISHES], counter_of[outcome], letter_of[outcome]
  local entries, exits = writes.command(1, 'ZADD', keys.roster), writes.command(3, 'ZREM', keys.roster)
  local n_entries, n_exits = entries.n, exits.n
  local unfinished, sub, start = M.member(b.id, 'u', ''), string.sub, nil
  for i = first, last do
    local name = names[i]
    number = number + 1
    local low = number % 100
    if low == 0 or not start then start = sub(M.numbered(b.id, number, ''), 1, -4) end
    n_entries = n_entries + 2
    entries[n_entries - 1] = '0'
    entries[n_entries] = start .. two_digits[low] .. SEP .. name
    if letter then
      entries[n_entries + 1], entries[n_entries + 2] = '0', M.member(b.id, letter, name)
      n_entries = n_entries + 2
    end
    n_exits = n_exits + 1
    exits[n_exits] = unfinished .. name
  end
  entries.n, exits.n = n_entries, n_exits
  b[B_FINISHES], b[counter] = number, b[counter] + last - first + 1
  b.member_finished = true
  if outcome == 'dead' then b.member_died = true end
  M.touch(b)
  return number
end

-- rejoin(b, name, outcome, number): a member that had finished, with this outcome and finish number, runs again.
-- If the batch had ended, it goes on.
function M.rejoin(b, name, outcome, number)
  if b[B_PHASE] == 'ended' then M.reopen(b) end
  local counter, letter = counter_of[outcome], letter_of[outcome]
  b[counter] = b[counter] - 1
  writes.remove(keys.roster, M.numbered(b.id, number, name))
  if letter then writes.remove(keys.roster, M.member(b.id, letter, name)) end
  writes.add(keys.roster, '0', M.member(b.id, 'u', name))
  M.touch(b)
end

-- reopen(b): a batch that had ended goes on, in its next generation. So does the batch that it is a member of.
function M.reopen(b)
  local parent = M.of_member(b[B_PARENT], b[B_CREATED])
  if parent and b[B_OUTCOME] ~= '' then M.rejoin(parent, '{' .. b.id, b[B_OUTCOME], b[B_FINISH]) end
  b[B_PHASE], b[B_GENERATION], b[B_ENDED], b[B_FAILED] = 'sealed', b[B_GENERATION] + 1, 0, 0
  b[B_REASON], b[B_OUTCOME], b[B_FINISH] = '', '', 0
  writes.remove_later(keys.chores, 'forget' .. SEP .. b.id)
  M.touch(b)
end

-- member_moved(id, h, old, state): a job with a batch goes from the state `old` to another; '' is that of a new job.
-- If it runs again and its batch was forgotten, it is no longer a member.
function M.member_moved(id, h, old, state)
  local was_finished = old ~= '' and not is_unfinished[old]
  local b
  if was_finished then
    b = M.of_member(h[BATCH], h[CREATED])
    if not b then h[BATCH], h[FINISH] = '', 0 end
  else
    b = M.get(h[BATCH])
  end
  if not b then return end
  if b[B_PRIORITY] >= 0 and h[PRIORITY] ~= b[B_PRIORITY] and (state == 'ready' or state == 'held') then
    h[PRIORITY], jobs.ready_members[id] = b[B_PRIORITY], nil
  end
  if old == '' then
    if not h.known then M.join(b, id) end   -- h.known: verbs/transfer.lua moves it to another queue
  elseif was_finished then
    M.rejoin(b, id, old, h[FINISH])
    h[FINISH] = 0
  elseif not is_unfinished[state] then
    local number = M.leave(b, id, state)
    if state ~= 'done' then h[FINISH] = number end
  end
end

-- set_paused(b, is_paused): pauses the lane of this batch, so that no member starts, or lets it go on.
function M.set_paused(b, is_paused)
  local name = 'batch:' .. b.id
  local limit = tonumber(lanes.unpack_list(call('HGET', keys.limits, name))[1]) or -1
  if limit < 0 and not is_paused then
    writes.delete(keys.limits, name)
  else
    writes.set(keys.limits, name, cmsgpack.pack({ limit, is_paused and 1 or 0 }))
  end
  lanes.fetch({ name })
  local lane = lanes.decode(name)
  lane.paused = is_paused
  lane.rest = nil   -- so lanes.named() computes its limit again
  if lane.declared ~= '' then lanes.refill(lanes.named(name)) end
end

-- Batches in messages.

-- event_subject(b) → what events.add() takes as the header in an event about a batch.
function M.event_subject(b)
  return { [STATE] = '', [TASK] = b[B_NAME], [QUEUE] = '', [FAILURES] = 0, [CRASHES] = 0 }
end

-- timestamp(ms) → a time as msgpack.
local function timestamp(ms)
  return '\199\12\255' .. struct.pack('>I4i8', (ms % 1000) * 1000000, math.floor(ms / 1000))
end

-- status(b) → its status as msgpack: a map of 15 values that Python reads as batch_state.BatchStatus.
function M.status(b)
  local none = cmsgpack.pack(nil)
  local priority = b[B_PRIORITY] >= 0 and cmsgpack.pack(b[B_PRIORITY]) or none
  local ended = b[B_ENDED] > 0 and timestamp(b[B_ENDED]) or none
  return '\222\0\15'
    .. cmsgpack.pack('id', b.id, 'name', b[B_NAME], 'state', b[B_PHASE])
    .. cmsgpack.pack('total', b[B_TOTAL], 'done', b[B_DONE], 'dead', b[B_DEAD], 'cancelled', b[B_CANCELLED])
    .. cmsgpack.pack('pending', M.pending(b), 'open', b[B_PHASE] == 'open', 'reason', b[B_REASON])
    .. cmsgpack.pack('generation', b[B_GENERATION], 'parent', b[B_PARENT])
    .. cmsgpack.pack('priority') .. priority
    .. cmsgpack.pack('created') .. timestamp(b[B_CREATED])
    .. cmsgpack.pack('ended') .. ended
end

return M
