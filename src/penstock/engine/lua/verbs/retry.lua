-- retry: running → scheduled, or → ready | held without a delay. Counts one failure more.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts
-- ARGV: worker, then per job: id, call number, delay in ms, reason, error as JSON
-- returns: per job: ok | cancelled | stale
-- event: retry

-- h is the header of a job.

local request = require 'request'
local lane_entry = require 'lane_entry'
local settle = require 'settle'
local transition = require 'transition'

local M = {}

local function retry(id, h, at)
  local delay, reason, error_json = tonumber(request.args[at]), request.args[at + 1], request.args[at + 2]
  settle.remember_attempt(id, h, 'retry', error_json)
  h[FAILURES], h[REASON], h[DUE] = h[FAILURES] + 1, reason, request.now + delay
  if h[DUE] > request.now then return transition.move('retry', id, h, 'scheduled', reason) end
  transition.move_to_tail(id, h)
  lane_entry.line_up('retry', id, h, reason)
end

function M.run() return settle.settle('retry', 5, retry) end

return M
