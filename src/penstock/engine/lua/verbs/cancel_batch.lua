-- cancel_batch: a batch takes no more members and starts none; a chore cancels those that wait, in pages (do_chores).
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: batch, reason
-- returns: cancelled (also if it was cancelled before) | ended | missing
-- event: cancel_batch

local request = require 'request'
local batch_chores = require 'batch_chores'
local batches = require 'batches'
local finish = require 'finish'

local M = {}

function M.run()
  local id, reason = request.args[1], request.args[2]
  local batch = batches.get(id)
  if not batch then return 'missing' end
  local answer = batch_chores.cancel('cancel_batch', batch, reason)
  finish.write_all()
  return answer
end

return M
