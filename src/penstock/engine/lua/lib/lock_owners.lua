-- Owners of locks. A lock that only one queue uses belongs to the job that it shows, also while that runs
-- (lib/locks.lua). Here is how such a lock is stored, and how it becomes an ordinary lane for a call that has more to
-- do with it. `h` is the header of a job.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local jobs = require 'jobs'
local lane_waiters = require 'lane_waiters'
local writes = require 'writes'
local call = request.call

local M = {}

local forms_of

function M.reset()
  forms_of = {}   -- queue → its forms
end

-- An owned lock is stored as a lane that shows only the owner (lib/lane_record.lua), with two differences: its `use` is
-- -1, and the number of jobs that wait always has five bytes: a mark, and the number in four. The parts are called:
--   head     everything up to that mark; it follows from the queue
--   start    the head and the number
--   owner    the owner's mark (its priority, and the length of its id) and its id

-- forms(queue) → what owned locks of this queue have in common: `head` and its size; forms[number of waiting jobs] is
-- their start, and forms[start] their turn.
function M.forms(queue)
  local forms = forms_of[queue]
  if not forms then
    forms = { queue = queue, head = '\153\255\0\0\160\160' .. cmsgpack.pack(queue) .. '\206' }
    forms.head_size = #forms.head
    forms_of[queue] = forms
  end
  return forms
end

-- owner_mark(priority, id) → what is stored in front of the owner's id.
function M.owner_mark(priority, id) return string.char(priority, 160 + #id) end

-- start_of(forms, n) → the start of a lock for which n jobs wait.
function M.start_of(forms, n)
  local start = forms[n] or forms.head .. struct.pack('>I4', n)
  forms[n] = start
  return start
end

-- turn_of(forms, start) → the turn of locks with this start: what they have in common when their owner has run;
-- nothing if no owned lock starts so.
--   queue, waiting   the queue, and how many jobs wait
--   after            the start of the lock once the next job is its owner; nothing if none waits
--   row              what is between the lane and the rank in a member of `held`
--   id_offset        where the id begins in such a member, counted from the end of the lane's name
function M.turn_of(forms, start)
  local head_size = forms.head_size
  if string.sub(start, 1, head_size) ~= forms.head or #start ~= head_size + 4 then return nil end
  local n, row = struct.unpack('>I4', start, head_size + 1), SEP .. forms.queue .. SEP
  local after = n > 0 and M.start_of(forms, n - 1) or nil
  local turn = { queue = forms.queue, waiting = n, after = after, row = row, id_offset = #row + 16 }
  forms[start] = turn
  return turn
end

-- without_owner(turn) → what an ordinary lane would store instead of such a lock, once its owner has run.
function M.without_owner(turn)
  return '\153' .. cmsgpack.pack(0, 0, 0, '', '', turn.queue, turn.waiting, 0, '')
end

-- pending_record(id) → the record that this call is about to store, or else the one that is stored.
local function pending_record(id)
  local records = writes.command(2, 'HSET', keys.jobs)
  for at = records.n - 1, 3, -2 do
    if records[at] == id then return records[at + 1] end
  end
  return call('HGET', keys.jobs, id) or ''
end

-- disown(lane): an owned lock becomes an ordinary lane. Its owner either runs, and has a slot, or is only shown. If
-- it is neither, or asks for another lane, somebody else wrote the lock; reconcile counts again.
function M.disown(lane)
  lane.use, lane.changed = 0, true
  for queue, row in pairs(lane.lines) do
    local id = row.shown[1] or ''
    local packed = pending_record(id)
    local h = jobs.decoded[id] or record.decode(packed)
    local asks_for_it = h and h[QUEUE] == queue and h[LANES][1] == lane.name and not h[LANES][2]
    local state = asks_for_it and h[STATE]
    lane.owner = id
    if state == 'running' then
      lane.use, lane.unlisted = 1, id
    elseif string.sub(packed, 1, FRONT) == OWNER_FRONT then
      jobs.rewritten[id] = READY_FRONT .. string.sub(packed, FRONT + 1)
      writes.put(2, 'HSET', keys.jobs, id, jobs.rewritten[id])
    end
    if state ~= 'ready' then row.shown, row.worst = {}, 0 end
  end
end

-- recall(lane): tells lib/lane_waiters.lua of the jobs that this call put into `held` while the lock was text.
function M.recall(lane)
  local row_start = lane.name .. SEP
  for member, score in pairs(writes.later[keys.held] or {}) do
    local row_name = score and string.match(member, '^[^\31]*\31[^\31]*\31')
    if row_name and string.sub(row_name, 1, #row_start) == row_start then lane_waiters.joined(member, row_name) end
  end
end

return M
