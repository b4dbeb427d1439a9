-- tick: a schedule that is due makes its jobs. The tick is claimed by naming the next one as it stands, so that however many
-- nodes try, one does it; and its job's id is made of schedule and nominal time.
-- include: record mail header write waiters lanes owners batches move line enter finish create cron
-- args: schedule, version, nominal time of the tick that is claimed or -1 for none (only see to those that wait), nominal and
--       due time of the one after, the first one that was missed or 0, packed header, payload, then per job: id, nominal time
-- returns: ok | stale (somebody else did it) | full (too many wait) | early | changed | paused | orphaned (no live worker's code has it) |
--          alone (there is no live worker) | missing;
--          how many jobs were made
-- event: those of the jobs it makes
local id, expected, missed = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[6])
local s, word = standing(id), 'ok'
if not s then return { 'missing', 0 } end
if s.status ~= 'active' then return { s.status, 0 } end
if s.version ~= ARGV[2] then return { 'changed', 0 } end
if s.source == 'code' and not has_keeper(id) then
  if call('ZCARD', workers) <= 1 then return { 'alone', 0 } end
  s.status = 'orphaned'
  keep(id, s)
  finish()
  return { 'orphaned', 0 }
end
if expected >= 0 and s.next ~= expected then
  word = 'stale'
elseif expected >= 0 and s.due > now then
  return { 'early', 0 }
elseif expected >= 0 and full(s) then
  word = 'full'
elseif expected >= 0 then
  for at = 9, ARGC, 2 do
    s.line[#s.line + 1], s.line[#s.line + 2] = ARGV[at], tonumber(ARGV[at + 1])
  end
  s.next, s.due = tonumber(ARGV[4]), tonumber(ARGV[5])
  if missed > 0 then
    s.missed = s.missed + 1
    recall(s, missed, '', 'missed')
  end
end
if word == 'stale' and #s.line == 0 then return { word, 0 } end
local made = drain(id, s, ARGV[7], ARGV[8])
keep(id, s)
accept()
return { word, made }
