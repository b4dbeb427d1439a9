-- resume_cron: a paused schedule goes on with the next tick from now; what it did not do while it was paused stays undone.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create cron
-- args: schedule, version, nominal and due time of its next tick from now
-- returns: ok | active | orphaned (it was not paused) | changed (look again) | missing
-- event: resume_cron
local id = ARGV[1]
local s = standing(id)
if not s then return 'missing' end
if s.status ~= 'paused' then return s.status end
if s.version ~= ARGV[2] then return 'changed' end
s.status = 'active'
if s.due <= now then s.next, s.due = tonumber(ARGV[3]), tonumber(ARGV[4]) end
keep(id, s)
note('resume_cron', id, subject(s))
finish()
return 'ok'
