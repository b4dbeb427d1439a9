-- admit: held → ready, for lanes whose rate allows more again.
-- flags: allow-oom
-- include: header write lanes move finish
-- args: how many lanes at most
-- returns: how many lanes were looked at, when the next one opens or -1, now
-- event: admit
local names = call('ZRANGE', openings, '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[1])
fetch(names)
for _, name in ipairs(names) do
  withdraw(openings, name)
  fill(lane_named(name), 'admit')
end
finish()
return { #names, head(openings) or -1, now }
