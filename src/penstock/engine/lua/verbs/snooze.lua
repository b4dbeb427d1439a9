-- snooze: running → scheduled, no attempt used.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts
-- ARGV: worker, then per job: id, call number, delay in ms, reason
-- returns: per job: ok | cancelled | stale
-- event: snooze

local request = require 'request'
local settle = require 'settle'
local transition = require 'transition'

local M = {}

function M.run()
  return settle.settle('snooze', 4, function(id, h, at)
    h[RELEASES], h[DUE], h[REASON] = h[RELEASES] + 1, request.now + tonumber(request.args[at]), request.args[at + 1]
    transition.move('snooze', id, h, 'scheduled', h[REASON])
  end)
end

return M
