-- set_cron: makes a schedule or changes it. What is the same stays as it is, so any number of nodes may say it at once;
-- what was set at run time wins over the code.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create cron
-- args: schedule, source (code | set), the worker whose code it is or '', version, pace, overlap, task, queue, nominal and
--       due time of its next tick, and the schedule itself, opaque
-- returns: made | changed | same | kept (it was set at run time)
-- event: set_cron
local id, source, worker, version, pace = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local s, word = standing(id), 'same'
if s and source == 'code' and s.source == 'set' then return 'kept' end
if not s then
  s = { status = 'active', last = '', made = 0, skipped = 0, missed = 0, line = {}, history = {} }
  word = 'made'
elseif s.version ~= version or s.source ~= source then
  word = 'changed'
end
if s.pace ~= pace then s.pace, s.next, s.due = pace, tonumber(ARGV[9]), tonumber(ARGV[10]) end
if worker ~= '' and call('ZSCORE', workers, worker) then
  has_keeper(id)
  add(keepers, 0, id .. SEP .. worker)
end
if word ~= 'same' or s.status == 'orphaned' then
  s.version, s.source, s.changed = version, source, now
  s.overlap, s.task, s.queue = ARGV[6], ARGV[7], ARGV[8]
  if s.status == 'orphaned' then s.status = 'active' end
  set(crons, field('spec', id), ARGV[11])
  keep(id, s)
  note('set_cron', id, subject(s), word)
end
finish()
return word
