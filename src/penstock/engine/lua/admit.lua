-- admit: held → ready, for lanes whose rate allows more again.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish
-- args: how many lanes at most
-- returns: how many lanes were looked at, when the next one opens or -1, now
-- event: admit
local MOST = 100   -- jobs, after which the other lanes are left to the next call
local names, looked_at = call('ZRANGE', openings, '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[1]), 0
need_lanes()
need_line()
fetch(names)
for _, name in ipairs(names) do
  withdraw(openings, name)
  fill({ name }, 'admit')
  looked_at = looked_at + 1
  if group and group[7] >= MOST then break end
end
finish()
return { looked_at, head(openings) or -1, now }
