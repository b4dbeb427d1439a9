-- The form in which the server keeps the sorted sets that every job goes through. A set of up to 128 short members is
-- a list that is searched from its beginning; with a hundred running jobs that took a fifth of lease and complete. A
-- set that once had a member of more than 64 bytes is a skip list, until the server is restarted.

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

-- force_skiplists(): adds a long member to each of these sets and removes it again. Each worker that registers does
-- so, because the server may have been restarted. The sentinel of a set cannot be the long member: it has to come
-- first.
function M.force_skiplists()
  local long_member = string.rep('.', 65)
  for _, key in ipairs({ keys.ready, keys.leases, keys.held, keys.holders }) do
    call('ZADD', key, 0, long_member)
    call('ZREM', key, long_member)
  end
end

return M
