-- release: running → ready | held, at the head of its line, no attempt used. What a worker gives back when it stops.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create ends settle
-- args: worker, then per job: id, call number
-- returns: per job: ok | cancelled | stale
-- event: release
return settle('release', 2, function(id, h)
  h[RELEASES] = h[RELEASES] + 1
  line_up('release', id, h)
end)
