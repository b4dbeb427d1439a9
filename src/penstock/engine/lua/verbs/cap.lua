-- cap: limits how many jobs of a queue may run at once, and how many may wait in it. Jobs beyond a new limit stay. If
--      more jobs may run now, workers are woken.
-- FLAGS: allow-oom
-- KEYS: meta idle counts ready jobs scheduled held leases dead finished tombs payloads heads lanes limits holders
--       openings batches roster chores timers unique cancels stats events waiting deaths queues
-- ARGV: queue, how many may run, how many may wait (-1: any number, '': as before)
-- returns: ok
-- event: cap

local request = require 'request'
local keys = require 'keys'
local counters = require 'counters'
local events = require 'events'
local finish = require 'finish'
local queue_room = require 'queue_room'
local call = request.call

local M = {}

-- new_setting(setting, max_running, max_waiting) → the setting of a queue with these limits; those that are nil stay.
-- It is [paused][ max=how many may wait.][ how many may run]. The dot keeps the first number apart from the second.
local function new_setting(setting, max_running, max_waiting)
  local paused = string.find(setting, '^paused') and 'paused' or ''
  max_running = max_running or tonumber(string.match(setting, ' (%d+)$')) or -1
  max_waiting = max_waiting or tonumber(string.match(setting, 'max=(%d+)%.')) or -1
  local waiting = max_waiting >= 0 and ' max=' .. max_waiting .. '.' or ''
  local running = max_running >= 0 and ' ' .. max_running or ''
  return paused .. waiting .. running
end

function M.run()
  local queue, max_running, max_waiting = request.args[1], request.args[2], request.args[3]
  local setting = call('HGET', keys.queues, queue) or ''
  call('HSET', keys.meta, 'settings', '1')
  call('HSET', keys.queues, queue, new_setting(setting, tonumber(max_running), tonumber(max_waiting)))
  local note = max_running ~= '' and max_running or 'max ' .. max_waiting
  events.add_plain('cap', queue, note)
  counters.became_ready[queue] = queue_room.count_ready(queue)
  finish.reopen_queues({ queue })
  finish.write_all()
  return 'ok'
end

return M
