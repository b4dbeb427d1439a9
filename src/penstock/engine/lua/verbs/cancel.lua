-- cancel: scheduled | held | ready → cancelled; a running job is flagged, and its worker gets a message.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: reason, then the ids
-- returns: per job: cancelled | cancelling | missing, or the state in which it had finished before
-- event: cancel

local request = require 'request'
local cancelling = require 'cancelling'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'

local M = {}

function M.run()
  local reason = request.args[1]
  local ids = { unpack(request.args, 2, request.argc) }
  local headers, answers = jobs.read(ids), {}
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do answers[i] = cancelling.cancel('cancel', id, headers[i], reason) end
  cancelling.finish()
  return answers
end

return M
