-- transfer: scheduled | held | ready → the same in another queue, in the order of arrival.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: queue, then the ids
-- returns: per job: ok | missing, or the state that it is in
-- event: transfer
-- In the code, `h` is the header of a job.

local request = require 'request'
local keys = require 'keys'
local counters = require 'counters'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local lane_turns = require 'lane_turns'
local lanes = require 'lanes'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

local queue, is_used

-- leave_queue(id, h): the job is in no state for the moment, so that transition.move() takes it for a new one. It is
-- `known`, so its batch does not count it again. It keeps the turn in an ordered lane.
local function leave_queue(id, h)
  local key, _, member = jobs.index_entry(id, h)
  writes.remove_later(key, member)
  if #h[LANES] > 0 then lanes.leave(id, h, h[STATE], member) end
  counters.add_to(counters.count_changes, h[STATE], h[QUEUE], -1)
  h[QUEUE], h[STATE], h.known = queue, '', true
  jobs.ready_members[id] = nil
end

-- transfer(id, h): the job goes to the other queue.
local function transfer(id, h)
  local state = h[STATE]
  leave_queue(id, h)
  if state ~= 'scheduled' and #h[LANES] > 0 then
    local at
    at, state = lane_turns.place_in_line(h)
    lanes.wait_in(h, at)
  end
  transition.move('transfer', id, h, state)
  h.known = nil
  is_used = true
end

-- transfer_if_waiting(id, h) → the answer for this job.
local function transfer_if_waiting(id, h)
  if not h then return 'missing' end
  if not jobs.waits(h) then return h[STATE] end
  if h[QUEUE] ~= queue then transfer(id, h) end
  return 'ok'
end

function M.run()
  queue = request.args[1]   -- the new one
  is_used = false           -- has a job gone there?
  local ids, answers = {}, {}
  for at = 2, request.argc do ids[#ids + 1] = request.args[at] end
  local headers = jobs.read(ids)
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do answers[i] = transfer_if_waiting(id, headers[i]) end
  if is_used then call('HSETNX', keys.queues, queue, '') end
  finish.write_all()
  return answers
end

return M
