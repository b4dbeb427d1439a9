-- Room in a queue: operators may set how many jobs may wait in it.

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

-- count_ready(queue) → how many of its jobs are in `ready`. This is the only state without a counter in `counts`.
function M.count_ready(queue)
  return call('ZLEXCOUNT', keys.ready, '[' .. queue .. SEP, '(' .. queue .. AFTER)
end

-- room_left(queue, setting) → how many more jobs the queue takes. Its setting is its value in `queues`, or false.
function M.room_left(queue, setting)
  local max_waiting = setting and setting ~= '' and tonumber(string.match(setting, 'max=(%d+)%.'))
  if not max_waiting then return math.huge end
  local counts = call('HMGET', keys.counts, queue .. SEP .. 'scheduled', queue .. SEP .. 'held')
  return max_waiting - M.count_ready(queue) - (counts[1] or 0) - (counts[2] or 0)
end

return M
