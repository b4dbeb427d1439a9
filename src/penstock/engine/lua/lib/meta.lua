-- What the key `meta` said when this call began. A verb that changes it writes it, and does not look here again.

local request = require 'request'
local keys = require 'keys'

local M = {}

-- read() → nothing, or the error that refuses the call: the data is of a version with another layout.
function M.read()
  local schema
  schema, M.seq, M.fence, M.halted, M.accepted, M.asleep, M.settings, M.uneven, M.headed = unpack(request.call('HMGET', keys.meta,
    'schema', 'seq', 'fence', 'halted', 'accepted', 'asleep', 'settings', 'uneven', 'headed'))
  if schema ~= SCHEMA then return redis.error_reply('PENSTOCKSCHEMA ' .. (schema or 'missing')) end
end

return M
