-- The call that runs: its arguments and its time, which is the server's.

local M = { call = redis.call }

-- begin(args): a call begins.
function M.begin(args)
  local time = redis.call('TIME')
  M.args, M.argc = args, #args
  M.now_us = time[1] * 1000000 + time[2]
  M.now = math.floor(M.now_us / 1000)   -- in ms, as all times that are stored
end

return M
