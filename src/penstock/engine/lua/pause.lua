-- pause: nothing of this queue is leased from now on; what runs goes on.
-- flags: allow-oom
-- keys: queues events
-- args: queue
-- returns: ok | paused (it was already)
-- event: pause
local queue = ARGV[1]
local before = call('HGET', queues, queue) or ''
if string.find(before, '^paused') then return 'paused' end
call('HSET', meta, 'settings', '1')
call('HSET', queues, queue, 'paused' .. before)   -- what follows is its limit
call('XADD', events, 'MAXLEN', '~', EVENTS, '*', 'e', cmsgpack.pack({ now, { { 'pause', queue, '', 0, '', '' } } }))
return 'ok'
