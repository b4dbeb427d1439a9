-- expire: scheduled | held | ready → cancelled, for what was not started by its `expires`.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create ends
-- args: how many at most
-- returns: how many expired, the next expiry or -1, now
-- event: expire
local members = call('ZRANGE', timers, '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[1])
local ids, expired = {}, 0
for i, member in ipairs(members) do ids[i] = last_part(member) end
local headers = read(ids)
meet(headers, #ids)
for i, id in ipairs(ids) do
  local h = headers[i]
  if h and waits(h) and h[EXPIRES] > 0 then
    h[REASON] = 'expired'
    move('expire', id, h, 'cancelled', 'expired')
    expired = expired + 1
  else
    drop(timers, members[i])
  end
end
finish()
return { expired, head(timers) or -1, now }
