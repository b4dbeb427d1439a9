-- run_cron: a job of a schedule here and now, whatever its times; also while it is paused. It obeys `overlap`.
-- include: record mail header write waiters lanes owners batches move line enter finish create cron
-- args: schedule, version, job id, packed header, payload
-- returns: made | queued | busy (the one before it is unfinished) | unique | changed (look again) | missing
-- event: that of the job it makes
local id, job = ARGV[1], ARGV[3]
local s = standing(id)
if not s then return 'missing' end
if s.version ~= ARGV[2] then return 'changed' end
if read({ job })[1] then return 'made' end
for i = 1, #s.line, 2 do
  if s.line[i] == job then return 'queued' end
end
local waits_for = s.overlap ~= 'allow' and (#s.line > 0 or unfinished(s.last))
if waits_for and (s.overlap == 'skip' or full(s)) then return 'busy' end
s.line[#s.line + 1], s.line[#s.line + 2] = job, now
local made = drain(id, s, ARGV[4], ARGV[5])
keep(id, s)
accept()
return made > 0 and cache[job] and 'made' or (waits_for and 'queued' or 'unique')
