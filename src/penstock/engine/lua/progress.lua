-- progress: running → running. How far an attempt has come.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish
-- args: worker, id, call number, progress as JSON
-- returns: ok | cancelling | stale
-- event: progress
local id = ARGV[2]
local h = read({ id })[1]
if not h or h[STATE] ~= 'running' or h[CLAIM] ~= ARGV[1] .. SEP .. ARGV[3] then return 'stale' end
h[PROGRESS] = ARGV[4]
save(id, h)
note('progress', id, h, ARGV[4])
finish()
return h[CANCELLING] == 1 and 'cancelling' or 'ok'
