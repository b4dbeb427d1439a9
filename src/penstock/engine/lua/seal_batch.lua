-- seal_batch: no more members are taken; if none is unfinished, the batch ends here.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create ends
-- args: batch
-- returns: how it stands: sealed | ended, or missing
-- event: seal_batch
need_batches()
local kit = batch_kit
local b = kit.one(ARGV[1])
if not b then return 'missing' end
if b[B_PHASE] == 'open' then
  b[B_PHASE] = 'sealed'
  withdraw(chores, 'abandon' .. SEP .. b.id)
  note('seal_batch', b.id, kit.subject(b))
  kit.touch(b)
  finish()
end
return b[B_PHASE]
