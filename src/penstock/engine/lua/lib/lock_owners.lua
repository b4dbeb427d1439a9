-- Owners: a lock that one queue uses belongs to the job that it shows, also while that runs (lib/locks.lua). Here it is made one
-- like any other lane, for those who have more to do with it than most.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local jobs = require 'jobs'
local lane_waiters = require 'lane_waiters'
local writes = require 'writes'
local call = request.call

local M = {}

local lock_forms

function M.reset()
  -- forms(queue) → head: how such locks are stored up to how many wait, which follows `at` bytes; [n]: the same with that number.
  lock_forms = {}
end

function M.forms(queue)
  local forms = lock_forms[queue]
  if not forms then
    forms = { queue = queue, head = '\153\255\0\0\160\160' .. cmsgpack.pack(queue) .. '\206' }
    forms.at = #forms.head
    lock_forms[queue] = forms
  end
  return forms
end

-- owner_mark(priority, id) → what comes before the id of an owner.
function M.owner_mark(priority, id) return string.char(priority, 160 + #id) end

-- start_of(forms, n) → forms[n], made when it is first needed.
function M.start_of(forms, n)
  local text = forms[n] or forms.head .. struct.pack('>I4', n)
  forms[n] = text
  return text
end

-- turn_of(forms, start) → forms[start]: what locks that begin so have in common when their owner has run: their queue, how many
-- wait, and how they begin once the next one is shown; `row` and `behind`: what is between lane and rank in a member of `held`, and how
-- much is between lane and id. Nothing if such locks do not begin so.
function M.turn_of(forms, start)
  if string.sub(start, 1, forms.at) ~= forms.head or #start ~= forms.at + 4 then return nil end
  local n, row = struct.unpack('>I4', start, forms.at + 1), SEP .. forms.queue .. SEP
  local after = n > 0 and M.start_of(forms, n - 1) or nil
  local turn = { queue = forms.queue, waiting = n, after = after, row = row, behind = #row + 16 }
  forms[start] = turn
  return turn
end

-- without_owner(turn) → what any lane would store instead of such a lock once its owner has run.
function M.without_owner(turn)
  return '\153' .. cmsgpack.pack(0, 0, 0, '', '', turn.queue, turn.waiting, 0, '')
end

-- pending_record(id) → what this script is about to store of a job, or what is stored.
local function pending_record(id)
  local records = writes.command(2, 'HSET', keys.jobs)
  for at = records.n - 1, 3, -2 do
    if records[at] == id then return records[at + 1] end
  end
  return call('HGET', keys.jobs, id) or ''
end

-- disown(lane): a lock that belongs to the job it shows becomes one like any other: either that job runs, and has a slot, or it
-- merely is shown. Should it be none of both, or ask for another lane, somebody else wrote this; reconcile counts again.
function M.disown(lane)
  lane.use, lane.changed = 0, true
  for queue, row in pairs(lane.lines) do
    local id = row.shown[1] or ''
    local packed = pending_record(id)
    local h = jobs.decoded[id] or record.decode(packed)
    local state = h and h[QUEUE] == queue and h[LANES][1] == lane.name and not h[LANES][2] and h[STATE]
    lane.owner = id
    if state == 'running' then
      lane.use, lane.unlisted = 1, id   -- it has a slot, and no entry of `holders` yet
    elseif string.sub(packed, 1, FRONT) == OWNER_FRONT then
      jobs.rewritten[id] = READY_FRONT .. string.sub(packed, FRONT + 1)
      writes.put(2, 'HSET', keys.jobs, id, jobs.rewritten[id])
    end
    if state ~= 'ready' then row.shown, row.worst = {}, 0 end
  end
end

-- schedules.add_history(lane): those that were put into `held` in this script while the lane was a text.
function M.recall(lane)
  for member, score in pairs(writes.later[keys.held] or {}) do
    local line_name = score and string.match(member, '^[^\31]*\31[^\31]*\31')
    if line_name and string.sub(line_name, 1, #lane.name + 1) == lane.name .. SEP then lane_waiters.joined(member, line_name) end
  end
end

return M
