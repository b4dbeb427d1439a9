-- due_crons: which schedules are due, and which of some others have ticks that wait.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create cron
-- args: how many at most, how many bytes of them at most, then the others
-- returns: when to look next or -1, now, then per schedule: id, the schedule, where it stands
local answer = { -1, now }
local ids, size = call('ZRANGE', ticks, '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[1]), 0
for at = 3, ARGC do
  local s = standing(ARGV[at])
  if s and #s.line > 0 then ids[#ids + 1] = ARGV[at] end
end
for _, id in ipairs(ids) do
  local found = call('HMGET', crons, field('spec', id), field('state', id))
  if found[1] and standing(id) then
    size = size + #found[1]
    local n = #answer
    if n > 2 and size > tonumber(ARGV[2]) then break end
    answer[n + 1], answer[n + 2], answer[n + 3] = id, found[1], found[2]
  else
    drop(ticks, id)
  end
end
finish()
answer[1] = head(ticks) or -1
return answer
