-- pause: nothing of this queue is leased from now on; what runs goes on.
-- FLAGS: allow-oom
-- KEYS: meta queues events
-- ARGV: queue
-- returns: ok | paused (it was already)
-- event: pause

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

function M.run()
  local queue = request.args[1]
  local before = call('HGET', keys.queues, queue) or ''
  if string.find(before, '^paused') then return 'paused' end
  call('HSET', keys.meta, 'settings', '1')
  call('HSET', keys.queues, queue, 'paused' .. before)   -- what follows is its limit
  call('XADD', keys.events, 'MAXLEN', '~', EVENTS, '*', 'e', cmsgpack.pack({ request.now, { { 'pause', queue, '', 0, '', '' } } }))
  return 'ok'
end

return M
