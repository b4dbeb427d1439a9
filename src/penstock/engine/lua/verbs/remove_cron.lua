-- remove_cron: forgets a schedule; the jobs that it made stay.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- ARGV: schedule
-- returns: ok | missing
-- event: remove_cron

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local schedules = require 'schedules'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

function M.run()
  local id = request.args[1]
  local s = schedules.state_of(id)
  if not s and call('HEXISTS', keys.crons, schedules.field('state', id)) == 0 then return 'missing' end
  writes.remove(keys.ticks, id)
  for _, member in ipairs(call('ZRANGE', keys.keepers, '[' .. id .. SEP, '(' .. id .. AFTER, 'BYLEX')) do
    writes.remove(keys.keepers, member)
  end
  writes.delete(keys.crons, schedules.field('spec', id))
  writes.delete(keys.crons, schedules.field('state', id))
  transition.add_event('remove_cron', id, schedules.event_subject(s or { task = '', queue = '' }))
  finish.write_all()
  return 'ok'
end

return M
