-- reschedule: scheduled | held | ready → scheduled at another time, or → ready | held if that is not in the future.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: due time (below 10^12 a delay from now), then the ids
-- returns: per job: ok | missing, or the state that it is in
-- event: reschedule

local request = require 'request'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local transition = require 'transition'

local M = {}

function M.run()
  local ids, answers, at = {}, {}, tonumber(request.args[1])
  for i = 2, request.argc do ids[#ids + 1] = request.args[i] end
  if at < DELAY_BELOW then at = request.now + at end
  local headers = jobs.read(ids)
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do
    local h = headers[i]
    if not h then
      answers[i] = 'missing'
    elseif not jobs.waits(h) then
      answers[i] = h[STATE]
    else
      answers[i] = 'ok'
      if at > request.now then
        h[DUE] = at
        transition.move('reschedule', id, h, 'scheduled')
      elseif h[STATE] == 'scheduled' then
        h[DUE] = at
        transition.move_to_tail(id, h)
        lane_entry.line_up('reschedule', id, h)
      end
    end
  end
  finish.write_all()
  return answers
end

return M
