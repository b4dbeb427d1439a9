-- open_batch: a batch begins, alone or as a member of another.
-- flags: none (a full server refuses new batches as it refuses new jobs)
-- include: record mail header write waiters lanes owners batches move line enter finish create ends
-- args: batch, nonce of this call, name, the batch that it is in or '', priority of its members or -1, limit or -1, ms
--       without a new member after which it is abandoned, ms that it is remembered after its end, most batches inside each
--       other, and what is made at its end, opaque
-- returns: created (also if this call made it before) | exists (also while one of this id is being forgotten), or why the other batch takes it not: unknown | sealed |
--          cancelled | ended | deep
-- event: open_batch
need_batches()
local id, parent_id, kit = ARGV[1], ARGV[4], batch_kit
local before = kit.one(id)
if before then return before[B_NONCE] == ARGV[2] and 'created' or 'exists' end
if call('ZSCORE', chores, 'forget' .. SEP .. id) then return 'exists' end
local parent = parent_id ~= '' and kit.one(parent_id)
local refusal = parent_id ~= '' and kit.refusal(parent)
if refusal then return refusal end
local depth = parent and parent[B_DEPTH] + 1 or 1
if depth > tonumber(ARGV[9]) then return 'deep' end
local b = { id = id }
for i = 1, B_FIELDS do b[i] = 0 end
for _, i in ipairs({ B_REASON, B_OUTCOME, B_CHORE, B_CURSOR, B_RETRIED }) do b[i] = '' end
b[B_PHASE], b[B_NAME], b[B_PARENT], b[B_DEPTH], b[B_NONCE] = 'open', ARGV[3], parent_id, depth, ARGV[2]
b[B_CREATED], b[B_ADDED], b[B_GENERATION] = now, now, 1
b[B_PRIORITY], b[B_LIMIT], b[B_ABANDON_AFTER], b[B_KEEP] =
  tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
kit.know(b)
kit.touch(b)
if parent then kit.join(parent, '{' .. id) end
store(batches, 'spec' .. SEP .. id, ARGV[10])
enter(chores, now + b[B_ABANDON_AFTER], 'abandon' .. SEP .. id)
alarm(chores, now + b[B_ABANDON_AFTER])
note('open_batch', id, kit.subject(b))
finish()
return 'created'
