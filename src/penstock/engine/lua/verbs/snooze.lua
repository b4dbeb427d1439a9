-- snooze: running → scheduled. Uses no attempt.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts
-- ARGV: worker, then per job: id, call number, delay in ms, reason
-- returns: per job: ok | cancelled | stale
-- event: snooze

-- h is the header of a job.

local request = require 'request'
local settle = require 'settle'
local transition = require 'transition'

local M = {}

local function snooze(id, h, at)
  local delay, reason = tonumber(request.args[at]), request.args[at + 1]
  h[RELEASES], h[DUE], h[REASON] = h[RELEASES] + 1, request.now + delay, reason
  transition.move('snooze', id, h, 'scheduled', reason)
end

function M.run() return settle.settle('snooze', 4, snooze) end

return M
