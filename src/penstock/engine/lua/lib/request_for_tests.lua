-- Takes the place of request.lua in the build for tests. There the last two arguments of each call are the time in ms,
-- and the number of the redis.call at which the script stops (0: nowhere). A command on a key that the call did not
-- bring stops the script, too.

local keys = require 'keys'

local M = {}

local stop_at      -- the number of the redis.call at which this call stops
local calls_made   -- redis.calls of this call so far

function M.begin(args)
  M.args, M.argc = args, #args - 2
  M.now = tonumber(args[M.argc + 1])
  M.now_us = M.now * 1000
  stop_at, calls_made = tonumber(args[M.argc + 2]), 0
end

function M.call(command, key, ...)
  calls_made = calls_made + 1
  if calls_made == stop_at then error('stopped at call ' .. calls_made) end
  if not keys.is_declared(key) and command ~= 'SPUBLISH' and command ~= 'PUBSUB' then
    error('undeclared key ' .. tostring(key))
  end
  return redis.call(command, key, ...)
end

return M
