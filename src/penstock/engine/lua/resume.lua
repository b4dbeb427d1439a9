-- resume: a paused queue goes on, and its sleeping workers are told.
-- flags: allow-oom
-- keys: queues
-- include: record mail room header write waiters lanes owners batches move line enter finish
-- args: queue
-- returns: ok | open (it was not paused)
-- event: resume
local queue = ARGV[1]
local before = call('HGET', queues, queue) or ''
if not string.find(before, '^paused') then return 'open' end
call('HSET', queues, queue, string.sub(before, 7))
groups[1] = { 'resume', queue, '', 0, '', {}, 0 }
arrivals[queue] = ready_in(queue)
reopen({ queue })
finish()
return 'ok'
