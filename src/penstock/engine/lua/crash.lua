-- crash: running → ready | held at the head of the line, or → dead after too many: its process died, its worker lives on.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create ends settle
-- args: worker, then per job: id, call number, crashes that bury a job, cause as JSON
-- returns: per job: ok | cancelled | stale
-- event: crash
return settle('crash', 4, function(id, h, at)
  remember(id, h, 'crash', ARGV[at + 1])
  h[CRASHES] = h[CRASHES] + 1
  if h[CRASHES] < tonumber(ARGV[at]) then return line_up('crash', id, h, 'crash') end
  h[REASON] = 'crash_loop'
  move('crash', id, h, 'dead', 'crash_loop')
end)
