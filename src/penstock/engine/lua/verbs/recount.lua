-- recount: sets the counts of jobs to what a client has counted, unless something happened meanwhile.
-- FLAGS: allow-oom
-- KEYS: meta jobs counts events
-- ARGV: the id of the last event when counting began, then per count its name and value
-- returns: ok | moved (count again)

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

function M.run()
  local last_event = call('XREVRANGE', keys.events, '+', '-', 'COUNT', 1)[1]
  if not last_event or last_event[1] ~= request.args[1] then return 'moved' end
  local was_counted = { [''] = true }   -- '' is the sentinel
  for at = 2, request.argc, 2 do
    local name, value = request.args[at], request.args[at + 1]
    was_counted[name] = true
    call('HSET', keys.counts, name, value)
  end
  for _, name in ipairs(call('HKEYS', keys.counts)) do
    if not was_counted[name] then call('HDEL', keys.counts, name) end
  end
  local n_jobs = call('HLEN', keys.jobs) - 1   -- but for the sentinel
  call('HSET', keys.meta, 'accepted', n_jobs + (call('HGET', keys.meta, 'forgotten') or 0))
  return 'ok'
end

return M
