-- cancel_batch: a batch takes no more members and starts none; those that wait are cancelled in pages, by do_chores.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: batch, reason
-- returns: cancelled (also if it was before) | ended | missing
-- event: cancel_batch

local request = require 'request'
local batch_chores = require 'batch_chores'
local batches = require 'batches'
local finish = require 'finish'

local M = {}

function M.run()
  local b = batches.get(request.args[1])
  if not b then return 'missing' end
  local word = batch_chores.cancel('cancel_batch', b, request.args[2])
  finish.write_all()
  return word
end

return M
