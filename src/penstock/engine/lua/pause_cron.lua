-- pause_cron: a schedule makes no jobs until it is resumed; those that it made go on.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create cron
-- args: schedule
-- returns: ok | paused (it was already) | missing
-- event: pause_cron
local id = ARGV[1]
local s = standing(id)
if not s then return 'missing' end
if s.status == 'paused' then return 'paused' end
s.status = 'paused'
keep(id, s)
note('pause_cron', id, subject(s))
finish()
return 'ok'
