-- remove_cron: forgets a schedule; the jobs that it made stay.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create cron
-- args: schedule
-- returns: ok | missing
-- event: remove_cron
local id = ARGV[1]
local s = standing(id)
if not s and call('HEXISTS', crons, field('state', id)) == 0 then return 'missing' end
drop(ticks, id)
for _, member in ipairs(call('ZRANGE', keepers, '[' .. id .. SEP, '(' .. id .. AFTER, 'BYLEX')) do
  drop(keepers, member)
end
erase(crons, field('spec', id))
erase(crons, field('state', id))
note('remove_cron', id, subject(s or { task = '', queue = '' }))
finish()
return 'ok'
