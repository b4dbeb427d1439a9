-- resume_cron: a paused schedule goes on with its next tick from now. Ticks that came during the pause make no jobs.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- ARGV: schedule, version, nominal time and due time of its next tick from now
-- returns: ok | active | orphaned (it was not paused) | changed (read it again) | missing
-- event: resume_cron

local request = require 'request'
local events = require 'events'
local finish = require 'finish'
local schedules = require 'schedules'

local M = {}

function M.run()
  local schedule, version, next_nominal, next_due = unpack(request.args, 1, 4)
  local state = schedules.state_of(schedule)
  if not state then return 'missing' end
  if state.status ~= 'paused' then return state.status end
  if state.version ~= version then return 'changed' end
  state.status = 'active'
  if state.due <= request.now then state.next, state.due = tonumber(next_nominal), tonumber(next_due) end
  schedules.save(schedule, state)
  events.add('resume_cron', schedule, schedules.event_subject(state))
  finish.write_all()
  return 'ok'
end

return M
