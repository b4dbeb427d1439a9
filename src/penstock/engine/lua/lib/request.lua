-- The call that runs: its arguments, its time, and redis.call. The time is the server's.

local M = { call = redis.call }

-- begin(args): a call with these arguments begins. `argc` is how many count; a verb may lower it.
function M.begin(args)
  local time = redis.call('TIME')   -- seconds, and the microseconds of this second
  M.args, M.argc = args, #args
  M.now_us = time[1] * 1000000 + time[2]
  M.now = math.floor(M.now_us / 1000)   -- in ms, like all times that are stored
end

return M
