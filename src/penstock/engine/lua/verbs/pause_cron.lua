-- pause_cron: a schedule makes no jobs until it is resumed; those that it made go on.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- ARGV: schedule
-- returns: ok | paused (it was already) | missing
-- event: pause_cron

local request = require 'request'
local finish = require 'finish'
local schedules = require 'schedules'
local transition = require 'transition'

local M = {}

function M.run()
  local id = request.args[1]
  local s = schedules.state_of(id)
  if not s then return 'missing' end
  if s.status == 'paused' then return 'paused' end
  s.status = 'paused'
  schedules.save(id, s)
  transition.add_event('pause_cron', id, schedules.event_subject(s))
  finish.write_all()
  return 'ok'
end

return M
