-- init: makes the namespace, or checks that it is one of ours. Each fixed key is kept alive by a sentinel, so that a
-- script never empties one: in a slot that is being moved, a key that vanished under a script would abort it half way.
-- unchecked
-- flags: allow-oom
-- keys: meta jobs payloads results attempts unique waiting queues nodes calls counts stats lanes limits crons batches logs
-- keys: ready held holders leases idle cancels keepers roster deaths skills
-- keys: heads openings scheduled timers workers lives retired dead finished tombs ticks chores events
-- include: trees
-- args: none
-- returns: the schema version found or made
local found = call('HGET', meta, 'schema')
if found and found ~= SCHEMA then return found end
-- A hash of up to 512 short values is a list that is searched from its beginning: with 500 jobs in it that was a third of an
-- enqueue. One value over 64 bytes makes it a table at once, and again when it is loaded.
for _, key in ipairs({ jobs, payloads, results, attempts, unique, waiting, counts, stats, logs, lanes }) do
  call('HSET', key, '', string.rep('.', 65))
end
for _, key in ipairs({ queues, nodes, calls, limits, crons, batches }) do call('HSET', key, '', '') end
for _, key in ipairs({ ready, held, holders, leases, idle, cancels, keepers, roster, deaths, skills }) do
  call('ZADD', key, 0, '')
end
be_trees()
for _, key in ipairs({ heads, openings, scheduled, timers, workers, lives, retired, dead, finished, tombs, ticks, chores }) do
  call('ZADD', key, 'inf', '')
end
if call('EXISTS', events) == 0 then
  call('XADD', events, '*', 'e', cmsgpack.pack({ now, {} }))
end
if not found then call('HSET', meta, 'schema', SCHEMA, 'made', now) end
-- What spares enqueue a look, should it have been lost.
if call('ZCARD', idle) > 1 then call('HSET', meta, 'asleep', '1') end
local some = call('HSCAN', queues, 0, 'COUNT', 100)
for at = 2, #some[2], 2 do
  if some[2][at] ~= '' or some[1] ~= '0' then call('HSET', meta, 'settings', '1') break end   -- of many it may be set for one
end
return SCHEMA
