-- recount: sets the counts to what was counted outside, provided that nothing moved meanwhile.
-- flags: allow-oom
-- keys: jobs counts events
-- args: the last event's id when counting began, then per count its name and value
-- returns: ok | moved (count again)
local last = call('XREVRANGE', events, '+', '-', 'COUNT', 1)
if not last[1] or last[1][1] ~= ARGV[1] then return 'moved' end
local right = { [''] = true }
for at = 2, ARGC, 2 do
  right[ARGV[at]] = true
  call('HSET', counts, ARGV[at], ARGV[at + 1])
end
for _, name in ipairs(call('HKEYS', counts)) do
  if not right[name] then call('HDEL', counts, name) end
end
call('HSET', meta, 'accepted', call('HLEN', jobs) - 1 + (call('HGET', meta, 'forgotten') or 0))
return 'ok'
