-- retry_batch: the dead members of a batch run again, in pages, by do_chores. If it had ended, this is its next generation.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create ends chores
-- args: batch, nonce of this call
-- returns: ok | none (no member is dead) | cancelling (it was cancelled and has not ended yet) | missing
-- event: retry_batch
need_batches()
local b = batch_kit.one(ARGV[1])
if not b then return 'missing' end
if b[B_RETRIED] == ARGV[2] then return 'ok' end
if is_called_off(b) then return 'cancelling' end
if b[B_CHORE] == 'retry' then
  take_up(b, 'retry', '')   -- from the first again: some that it has passed may have died since
elseif not set_going('retry_batch', b) then
  return 'none'
end
b[B_RETRIED] = ARGV[2]
finish()
return 'ok'
