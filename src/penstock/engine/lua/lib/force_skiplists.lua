-- Sorted sets that every job goes through. Up to 128 short members are kept as a list that is searched from its beginning: with a
-- hundred jobs running that was a fifth of lease and complete. A set that had a long member stays a tree, until the server is
-- started anew; so each worker that comes sees to it. The sentinel cannot be long, for it has to come first.

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

function M.force_skiplists()
  local long = string.rep('.', 65)
  for _, key in ipairs({ keys.ready, keys.leases, keys.held, keys.holders }) do
    call('ZADD', key, 0, long)
    call('ZREM', key, long)
  end
end

return M
