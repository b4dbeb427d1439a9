-- retry_batch: the dead members of a batch run again, in pages, by do_chores. If it had ended, this is its next generation.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: batch, nonce of this call
-- returns: ok | none (no member is dead) | cancelling (it was cancelled and has not ended yet) | missing
-- event: retry_batch

local request = require 'request'
local batch_chores = require 'batch_chores'
local batches = require 'batches'
local finish = require 'finish'

local M = {}

function M.run()
  local b = batches.get(request.args[1])
  if not b then return 'missing' end
  if b[B_RETRIED] == request.args[2] then return 'ok' end
  if batch_chores.is_cancelling(b) then return 'cancelling' end
  if b[B_CHORE] == 'retry' then
    batch_chores.begin(b, 'retry', '')   -- from the first again: some that it has passed may have died since
  elseif not batch_chores.start_retry('retry_batch', b) then
    return 'none'
  end
  b[B_RETRIED] = request.args[2]
  finish.write_all()
  return 'ok'
end

return M
