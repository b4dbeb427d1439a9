-- retry: running → scheduled, or → ready | held without a delay. One failure more.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts
-- ARGV: worker, then per job: id, call number, delay in ms, reason, error as JSON
-- returns: per job: ok | cancelled | stale
-- event: retry

local request = require 'request'
local lane_entry = require 'lane_entry'
local settle = require 'settle'
local transition = require 'transition'

local M = {}

function M.run()
  return settle.settle('retry', 5, function(id, h, at)
    settle.remember_attempt(id, h, 'retry', request.args[at + 2])
    h[FAILURES], h[REASON], h[DUE] = h[FAILURES] + 1, request.args[at + 1], request.now + tonumber(request.args[at])
    if h[DUE] > request.now then
      transition.move('retry', id, h, 'scheduled', h[REASON])
    else
      transition.move_to_tail(id, h)
      lane_entry.line_up('retry', id, h, h[REASON])
    end
  end)
end

return M
