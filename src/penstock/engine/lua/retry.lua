-- retry: running → scheduled, or → ready | held without a delay. One failure more.
-- flags: allow-oom
-- kept: as a function
-- include: record mail header write waiters lanes owners batches move line enter finish create ends settle
-- args: worker, then per job: id, call number, delay in ms, reason, error as JSON
-- returns: per job: ok | cancelled | stale
-- event: retry
return settle('retry', 5, function(id, h, at)
  remember(id, h, 'retry', ARGV[at + 2])
  h[FAILURES], h[REASON], h[DUE] = h[FAILURES] + 1, ARGV[at + 1], now + tonumber(ARGV[at])
  if h[DUE] > now then
    move('retry', id, h, 'scheduled', h[REASON])
  else
    tail(id, h)
    line_up('retry', id, h, h[REASON])
  end
end)
