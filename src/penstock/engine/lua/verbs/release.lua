-- release: running → ready | held, at the head of its line. Uses no attempt. A stopping worker does this.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts
-- ARGV: worker, then per job: id, call number
-- returns: per job: ok | cancelled | stale
-- event: release

-- h is the header of a job.

local lane_entry = require 'lane_entry'
local settle = require 'settle'

local M = {}

local function release(id, h)
  h[RELEASES] = h[RELEASES] + 1
  lane_entry.line_up('release', id, h)
end

function M.run() return settle.settle('release', 2, release) end

return M
