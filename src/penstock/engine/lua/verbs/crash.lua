-- crash: running → ready | held at the head of the line, or → dead after too many: its process died, its worker lives on.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts
-- ARGV: worker, then per job: id, call number, crashes that bury a job, cause as JSON
-- returns: per job: ok | cancelled | stale
-- event: crash

local request = require 'request'
local lane_entry = require 'lane_entry'
local settle = require 'settle'
local transition = require 'transition'

local M = {}

function M.run()
  return settle.settle('crash', 4, function(id, h, at)
    settle.remember_attempt(id, h, 'crash', request.args[at + 1])
    h[CRASHES] = h[CRASHES] + 1
    if h[CRASHES] < tonumber(request.args[at]) then return lane_entry.line_up('crash', id, h, 'crash') end
    h[REASON] = 'crash_loop'
    transition.move('crash', id, h, 'dead', 'crash_loop')
  end)
end

return M
