-- cap: at most so many jobs of a queue run at once. What is over it ends by itself; where it is raised, workers are told.
-- flags: allow-oom
-- keys: queues
-- include: header write lanes batches move line enter finish
-- args: queue, limit (-1: none)
-- returns: ok
-- event: cap
local queue, limit = ARGV[1], tonumber(ARGV[2])
local paused = string.find(call('HGET', queues, queue) or '', '^paused') and 'paused' or ''
call('HSET', queues, queue, limit >= 0 and paused .. ' ' .. limit or paused)
groups[1] = { 'cap', queue, '', 0, ARGV[2], {}, 0 }
arrivals[queue] = tonumber(call('HGET', counts, queue .. SEP .. 'ready') or 0)
finish()
return 'ok'
