-- recount: sets the counts to what was counted outside, provided that nothing moved meanwhile.
-- FLAGS: allow-oom
-- KEYS: meta jobs counts events
-- ARGV: the last event's id when counting began, then per count its name and value
-- returns: ok | moved (count again)

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

function M.run()
  local last = call('XREVRANGE', keys.events, '+', '-', 'COUNT', 1)
  if not last[1] or last[1][1] ~= request.args[1] then return 'moved' end
  local right = { [''] = true }
  for at = 2, request.argc, 2 do
    right[request.args[at]] = true
    call('HSET', keys.counts, request.args[at], request.args[at + 1])
  end
  for _, name in ipairs(call('HKEYS', keys.counts)) do
    if not right[name] then call('HDEL', keys.counts, name) end
  end
  call('HSET', keys.meta, 'accepted', call('HLEN', keys.jobs) - 1 + (call('HGET', keys.meta, 'forgotten') or 0))
  return 'ok'
end

return M
