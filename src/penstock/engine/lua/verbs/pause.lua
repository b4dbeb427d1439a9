-- pause: no job of this queue is leased from now on. Running jobs go on.
-- FLAGS: allow-oom
-- KEYS: meta queues events
-- ARGV: queue
-- returns: ok | paused (it was paused before)
-- event: pause

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

function M.run()
  local queue = request.args[1]
  local setting = call('HGET', keys.queues, queue) or ''
  if string.find(setting, '^paused') then return 'paused' end
  call('HSET', keys.meta, 'settings', '1')
  call('HSET', keys.queues, queue, 'paused' .. setting)   -- its limits follow
  local entry = { request.now, { { 'pause', queue, '', 0, '', '' } } }
  call('XADD', keys.events, 'MAXLEN', '~', EVENTS, '*', 'e', cmsgpack.pack(entry))
  return 'ok'
end

return M
