-- The fields of the key `meta` that verbs ask for most, read once at the beginning of each call. A verb that changes
-- one of them writes it to the server; the value here does not change.

local request = require 'request'
local keys = require 'keys'

local M = {}

-- read() → nothing, or the error that refuses the call because the data has the layout of another version. A field
-- that is not stored is false.
function M.read()
  local values = request.call('HMGET', keys.meta,
    'schema', 'seq', 'fence', 'halted', 'accepted', 'asleep', 'settings', 'uneven', 'headed')
  local schema = values[1]
  if schema ~= SCHEMA then return redis.error_reply('PENSTOCKSCHEMA ' .. (schema or 'missing')) end
  M.seq = values[2]        -- the last place in line that was given out
  M.fence = values[3]      -- the last fence that was given out
  M.halted = values[4]     -- names of paused tasks
  M.accepted = values[5]   -- how many jobs were ever created
  M.asleep = values[6]     -- '1': a worker may be in `idle`
  M.settings = values[7]   -- '1': something was set for a queue once
  M.uneven = values[8]     -- '1': workers of a queue differ in the tasks that they know
  M.headed = values[9]     -- queue and priority of the last plain jobs, while `heads` has their place or an earlier one
end

return M
