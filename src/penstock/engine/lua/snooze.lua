-- snooze: running → scheduled, no attempt used.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create ends settle
-- args: worker, then per job: id, call number, delay in ms, reason
-- returns: per job: ok | cancelled | stale
-- event: snooze
return settle('snooze', 4, function(id, h, at)
  h[RELEASES], h[DUE], h[REASON] = h[RELEASES] + 1, now + tonumber(ARGV[at]), ARGV[at + 1]
  move('snooze', id, h, 'scheduled', h[REASON])
end)
