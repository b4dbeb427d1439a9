-- cap: at most so many jobs of a queue run at once, or wait in it. What is over it stays; where more may run, workers are told.
-- FLAGS: allow-oom
-- KEYS: meta idle counts ready jobs scheduled held leases dead finished tombs payloads heads lanes limits holders
--       openings batches roster chores timers unique cancels stats events waiting deaths queues
-- ARGV: queue, how many may run, how many may wait (-1: any number, '' to leave it)
-- returns: ok
-- event: cap

local request = require 'request'
local keys = require 'keys'
local counters = require 'counters'
local finish = require 'finish'
local queue_room = require 'queue_room'
local transition = require 'transition'
local call = request.call

local M = {}

function M.run()
  local queue, before = request.args[1], call('HGET', keys.queues, request.args[1]) or ''
  local paused = string.find(before, '^paused') and 'paused' or ''
  local limit = tonumber(request.args[2]) or tonumber(string.match(before, ' (%d+)$')) or -1
  local most = tonumber(request.args[3]) or tonumber(string.match(before, 'max=(%d+)%.')) or -1
  local waiting_most = most >= 0 and ' max=' .. most .. '.' or ''   -- ends in no digit, unlike a limit
  call('HSET', keys.meta, 'settings', '1')
  call('HSET', keys.queues, queue, paused .. waiting_most .. (limit >= 0 and ' ' .. limit or ''))
  transition.event_groups[1] = { 'cap', queue, '', 0, request.args[2] ~= '' and request.args[2] or 'max ' .. request.args[3], {}, 0 }
  counters.became_ready[queue] = queue_room.count_ready(queue)
  finish.reopen_queues({ queue })
  finish.write_all()
  return 'ok'
end

return M
