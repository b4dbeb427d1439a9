-- progress: running → running. How far an attempt has come.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: worker, id, call number, progress as JSON
-- returns: ok | cancelling | stale
-- event: progress

local request = require 'request'
local finish = require 'finish'
local jobs = require 'jobs'
local transition = require 'transition'
local writes = require 'writes'

local M = {}

function M.run()
  local id = request.args[2]
  local h = jobs.read({ id })[1]
  if not h or h[STATE] ~= 'running' or h[CLAIM] ~= request.args[1] .. SEP .. request.args[3] then return 'stale' end
  h[PROGRESS] = request.args[4]
  writes.save(id, h)
  transition.add_event('progress', id, h, request.args[4])
  finish.write_all()
  return h[CANCELLING] == 1 and 'cancelling' or 'ok'
end

return M
