-- resume_cron: a paused schedule goes on with the next tick from now; what it did not do while it was paused stays undone.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- ARGV: schedule, version, nominal and due time of its next tick from now
-- returns: ok | active | orphaned (it was not paused) | changed (look again) | missing
-- event: resume_cron

local request = require 'request'
local finish = require 'finish'
local schedules = require 'schedules'
local transition = require 'transition'

local M = {}

function M.run()
  local id = request.args[1]
  local s = schedules.state_of(id)
  if not s then return 'missing' end
  if s.status ~= 'paused' then return s.status end
  if s.version ~= request.args[2] then return 'changed' end
  s.status = 'active'
  if s.due <= request.now then s.next, s.due = tonumber(request.args[3]), tonumber(request.args[4]) end
  schedules.save(id, s)
  transition.add_event('resume_cron', id, schedules.event_subject(s))
  finish.write_all()
  return 'ok'
end

return M
