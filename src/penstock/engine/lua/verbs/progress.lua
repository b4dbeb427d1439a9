-- progress: running → running. A job says how far it has come.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: worker, id, call number, progress as JSON
-- returns: ok | cancelling | stale
-- event: progress

-- h is the header of a job.

local request = require 'request'
local events = require 'events'
local finish = require 'finish'
local jobs = require 'jobs'
local writes = require 'writes'

local M = {}

function M.run()
  local worker, id, number, progress = unpack(request.args)
  local h = jobs.read({ id })[1]
  if not h or h[STATE] ~= 'running' or h[CLAIM] ~= worker .. SEP .. number then return 'stale' end
  h[PROGRESS] = progress
  writes.save(id, h)
  events.add('progress', id, h, progress)
  finish.write_all()
  return h[CANCELLING] == 1 and 'cancelling' or 'ok'
end

return M
