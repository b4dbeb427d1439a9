-- cancel_batch: a batch takes no more members and starts none; those that wait are cancelled in pages, by do_chores.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create ends chores
-- args: batch, reason
-- returns: cancelled (also if it was before) | ended | missing
-- event: cancel_batch
need_batches()
local b = batch_kit.one(ARGV[1])
if not b then return 'missing' end
local word = call_off('cancel_batch', b, ARGV[2])
finish()
return word
