-- remove_cron: forgets a schedule. The jobs that it has made stay.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- ARGV: schedule
-- returns: ok | missing
-- event: remove_cron

local request = require 'request'
local keys = require 'keys'
local events = require 'events'
local finish = require 'finish'
local schedules = require 'schedules'
local writes = require 'writes'
local call = request.call

local M = {}

function M.run()
  local schedule = request.args[1]
  local spec_field, state_field = schedules.field('spec', schedule), schedules.field('state', schedule)
  local state = schedules.state_of(schedule)
  if not state and call('HEXISTS', keys.crons, state_field) == 0 then return 'missing' end
  state = state or { task = '', queue = '' }   -- its state cannot be read
  local keepers = call('ZRANGE', keys.keepers, '[' .. schedule .. SEP, '(' .. schedule .. AFTER, 'BYLEX')
  writes.remove(keys.ticks, schedule)
  for _, keeper in ipairs(keepers) do writes.remove(keys.keepers, keeper) end
  writes.delete(keys.crons, spec_field)
  writes.delete(keys.crons, state_field)
  events.add('remove_cron', schedule, schedules.event_subject(state))
  finish.write_all()
  return 'ok'
end

return M
