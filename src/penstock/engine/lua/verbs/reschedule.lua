-- reschedule: scheduled | held | ready → scheduled at another time, or → ready | held if that is not in the future.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: due time in ms (below 10^12 a delay from now), then the ids
-- returns: per job: ok | missing, or the state that it is in
-- event: reschedule
-- In the code, `h` is the header of a job.

local request = require 'request'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local transition = require 'transition'

local M = {}

-- reschedule(id, h, due) → the answer for this job.
local function reschedule(id, h, due)
  if not h then return 'missing' end
  if not jobs.waits(h) then return h[STATE] end
  if due > request.now then
    h[DUE] = due
    transition.move('reschedule', id, h, 'scheduled')
  elseif h[STATE] == 'scheduled' then
    h[DUE] = due
    transition.move_to_tail(id, h)
    lane_entry.line_up('reschedule', id, h)
  end
  return 'ok'
end

function M.run()
  local ids, answers, due = {}, {}, tonumber(request.args[1])
  for at = 2, request.argc do ids[#ids + 1] = request.args[at] end
  if due < DELAY_BELOW then due = request.now + due end
  local headers = jobs.read(ids)
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do answers[i] = reschedule(id, headers[i], due) end
  finish.write_all()
  return answers
end

return M
