-- pause_cron: a schedule makes no jobs until it is resumed. The jobs that it has made go on.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- ARGV: schedule
-- returns: ok | paused (it was paused before) | missing
-- event: pause_cron

local request = require 'request'
local events = require 'events'
local finish = require 'finish'
local schedules = require 'schedules'

local M = {}

function M.run()
  local schedule = request.args[1]
  local state = schedules.state_of(schedule)
  if not state then return 'missing' end
  if state.status == 'paused' then return 'paused' end
  state.status = 'paused'
  schedules.save(schedule, state)
  events.add('pause_cron', schedule, schedules.event_subject(state))
  finish.write_all()
  return 'ok'
end

return M
