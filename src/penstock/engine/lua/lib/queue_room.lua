-- Room: a queue may be told how many jobs may wait in it.

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

-- count_ready(queue) → how many are in line: the only state that is not counted, for the line itself tells.
function M.count_ready(queue) return call('ZLEXCOUNT', keys.ready, '[' .. queue .. SEP, '(' .. queue .. AFTER) end

-- room_left(queue, setting) → how many more it takes, where this is set for it.
function M.room_left(queue, setting)
  local left = setting and setting ~= '' and tonumber(string.match(setting, 'max=(%d+)%.'))
  if not left then return math.huge end
  local at = queue .. SEP
  local waiting_now = call('HMGET', keys.counts, at .. 'scheduled', at .. 'held')
  return left - M.count_ready(queue) - (waiting_now[1] or 0) - (waiting_now[2] or 0)
end

return M
