-- cancel: scheduled | held | ready → cancelled; a running job is flagged and its worker told.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: reason, then the ids
-- returns: per job: cancelled | cancelling | missing, or the state it had already ended in
-- event: cancel

local request = require 'request'
local cancelling = require 'cancelling'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'

local M = {}

function M.run()
  local ids, answers = {}, {}
  for at = 2, request.argc do ids[#ids + 1] = request.args[at] end
  local headers = jobs.read(ids)
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do answers[i] = cancelling.cancel('cancel', id, headers[i], request.args[1]) end
  cancelling.finish()
  return answers
end

return M
