-- promote: scheduled → ready | held, for jobs that are due, in the order of due times.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: how many at most
-- returns: how many were moved, the next due time or -1, now
-- event: promote
-- In the code, `h` is the header of a job.

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

function M.run()
  local ids = call('ZRANGE', keys.scheduled, '-inf', request.now, 'BYSCORE', 'LIMIT', 0, request.args[1])
  local headers, n_moved = jobs.read(ids), 0
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do
    local h = headers[i]
    if h and h[STATE] == 'scheduled' then
      transition.move_to_tail(id, h)
      lane_entry.line_up('promote', id, h)
      n_moved = n_moved + 1
    else
      writes.remove(keys.scheduled, id)
    end
  end
  finish.write_all()
  return { n_moved, jobs.first_score(keys.scheduled) or -1, request.now }
end

return M
