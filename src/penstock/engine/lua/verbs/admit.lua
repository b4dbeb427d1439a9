-- admit: held → ready, for lanes whose rate allows more again.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: how many lanes at most
-- returns: how many lanes were looked at, when the next one opens or -1, now
-- event: admit

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_turns = require 'lane_turns'
local lanes = require 'lanes'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

local MAX_SHOWN = 100   -- jobs of one queue and task, after which the other lanes are left to the next call

function M.run()
  local max_lanes = request.args[1]
  local names = call('ZRANGE', keys.openings, '-inf', request.now, 'BYSCORE', 'LIMIT', 0, max_lanes)
  local looked_at = 0
  lanes.fetch(names)
  for _, name in ipairs(names) do
    writes.remove_later(keys.openings, name)
    lane_turns.show_waiters({ name }, 'admit')
    looked_at = looked_at + 1
    local group = transition.last_group
    local n_shown = group and group[7] or 0
    if n_shown >= MAX_SHOWN then break end
  end
  finish.write_all()
  return { looked_at, jobs.first_score(keys.openings) or -1, request.now }
end

return M
