-- bury: running → dead, with its payload. Counts one failure more; the job is not tried again.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts
-- ARGV: worker, then per job: id, call number, reason, error as JSON, its fingerprint
-- returns: per job: ok | cancelled | stale
-- event: bury

-- h is the header of a job.

local request = require 'request'
local settle = require 'settle'
local transition = require 'transition'

local M = {}

local function bury(id, h, at)
  local reason, error_json, fingerprint = request.args[at], request.args[at + 1], request.args[at + 2]
  settle.remember_attempt(id, h, 'bury', error_json)
  h[FAILURES], h[REASON], h[DEATH] = h[FAILURES] + 1, reason, fingerprint
  transition.move('bury', id, h, 'dead', reason)
end

function M.run() return settle.settle('bury', 5, bury) end

return M
