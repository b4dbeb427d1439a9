-- crash: running → ready | held at the head of the line, or → dead after too many crashes. The process that ran
--     the job died; its worker lives.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts
-- ARGV: worker, then per job: id, call number, after how many crashes it is dead, cause as JSON
-- returns: per job: ok | cancelled | stale
-- event: crash

-- h is the header of a job.

local request = require 'request'
local lane_entry = require 'lane_entry'
local settle = require 'settle'
local transition = require 'transition'

local M = {}

local function crash(id, h, at)
  local max_crashes, cause_json = tonumber(request.args[at]), request.args[at + 1]
  settle.remember_attempt(id, h, 'crash', cause_json)
  h[CRASHES] = h[CRASHES] + 1
  if h[CRASHES] < max_crashes then return lane_entry.line_up('crash', id, h, 'crash') end
  h[REASON] = 'crash_loop'
  transition.move('crash', id, h, 'dead', 'crash_loop')
end

function M.run() return settle.settle('crash', 4, crash) end

return M
