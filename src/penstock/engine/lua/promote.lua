-- promote: scheduled → ready | held, for what is due, in the order of due times.
-- flags: allow-oom
-- kept: as a function
-- include: record mail header write waiters lanes owners batches move line enter finish
-- args: how many at most
-- returns: how many were moved, the next due time or -1, now
-- event: promote
local ids = call('ZRANGE', scheduled, '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[1])
local headers, moved = read(ids), 0
meet(headers, #ids)
for i, id in ipairs(ids) do
  local h = headers[i]
  if h and h[STATE] == 'scheduled' then
    tail(id, h)
    line_up('promote', id, h)
    moved = moved + 1
  else
    drop(scheduled, id)
  end
end
finish()
return { moved, head(scheduled) or -1, now }
