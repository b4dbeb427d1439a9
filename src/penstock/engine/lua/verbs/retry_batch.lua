-- retry_batch: a chore runs the dead members of a batch again, in pages (do_chores). If the batch had ended, it goes
--      on as its next generation.
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
  local id, nonce = request.args[1], request.args[2]
  local batch = batches.get(id)
  if not batch then return 'missing' end
  if batch[B_RETRIED] == nonce then return 'ok' end   -- this call was sent again
  if batch_chores.is_cancelling(batch) then return 'cancelling' end
  if batch[B_CHORE] == 'retry' then
    batch_chores.begin(batch, 'retry', '')   -- from the first member again: members before the cursor may be dead again
  elseif not batch_chores.start_retry('retry_batch', batch) then
    return 'none'
  end
  batch[B_RETRIED] = nonce
  finish.write_all()
  return 'ok'
end

return M
