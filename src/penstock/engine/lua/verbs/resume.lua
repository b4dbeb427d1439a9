-- resume: a paused queue goes on, and its sleeping workers are woken.
-- FLAGS: allow-oom
-- KEYS: meta idle counts ready jobs scheduled held leases dead finished tombs payloads heads lanes limits holders
--       openings batches roster chores timers unique cancels stats events waiting deaths queues
-- ARGV: queue
-- returns: ok | open (it was not paused)
-- event: resume

local request = require 'request'
local keys = require 'keys'
local counters = require 'counters'
local events = require 'events'
local finish = require 'finish'
local queue_room = require 'queue_room'
local call = request.call

local M = {}

function M.run()
  local queue = request.args[1]
  local setting = call('HGET', keys.queues, queue) or ''
  if not string.find(setting, '^paused') then return 'open' end
  local limits = string.sub(setting, #'paused' + 1)
  call('HSET', keys.queues, queue, limits)
  events.add_plain('resume', queue, '')
  counters.became_ready[queue] = queue_room.count_ready(queue)
  finish.reopen_queues({ queue })
  finish.write_all()
  return 'ok'
end

return M
