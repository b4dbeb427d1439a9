-- bury: running → dead, payload intact. One failure more, and no more tries.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create ends settle
-- args: worker, then per job: id, call number, reason, error as JSON, its fingerprint
-- returns: per job: ok | cancelled | stale
-- event: bury
return settle('bury', 5, function(id, h, at)
  remember(id, h, 'bury', ARGV[at + 1])
  h[FAILURES], h[REASON], h[DEATH] = h[FAILURES] + 1, ARGV[at], ARGV[at + 2]
  move('bury', id, h, 'dead', h[REASON])
end)
