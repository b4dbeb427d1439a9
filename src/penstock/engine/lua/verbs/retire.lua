-- retire: running → ready | held at the head of the line, for all jobs of a worker whose life ends. Uses no attempt.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts nodes skills
--       workers calls retired lives
-- ARGV: worker, how many jobs at most
-- returns: how many jobs it had, 1 if there are more
-- event: release

-- h is the header of a job.

local request = require 'request'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local settle = require 'settle'
local worker_lives = require 'worker_lives'

local M = {}

local function release(id, h)
  h[RELEASES] = h[RELEASES] + 1
  lane_entry.line_up('release', id, h)
end

function M.run()
  local worker = request.args[1]
  local members = jobs.held_by(worker, tonumber(request.args[2]))
  settle.take_back('release', members, release)
  finish.write_all()
  if #jobs.held_by(worker, 1) > 0 then return { #members, 1 } end
  worker_lives.forget(worker)
  return { #members, 0 }
end

return M
