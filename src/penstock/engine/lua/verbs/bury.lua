-- bury: running → dead, payload intact. One failure more, and no more tries.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts
-- ARGV: worker, then per job: id, call number, reason, error as JSON, its fingerprint
-- returns: per job: ok | cancelled | stale
-- event: bury

local request = require 'request'
local settle = require 'settle'
local transition = require 'transition'

local M = {}

function M.run()
  return settle.settle('bury', 5, function(id, h, at)
    settle.remember_attempt(id, h, 'bury', request.args[at + 1])
    h[FAILURES], h[REASON], h[DEATH] = h[FAILURES] + 1, request.args[at], request.args[at + 2]
    transition.move('bury', id, h, 'dead', h[REASON])
  end)
end

return M
