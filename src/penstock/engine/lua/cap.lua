-- cap: at most so many jobs of a queue run at once, or wait in it. What is over it stays; where more may run, workers are told.
-- flags: allow-oom
-- keys: queues
-- include: record mail room header write waiters lanes owners batches move line enter finish
-- args: queue, how many may run, how many may wait (-1: any number, '' to leave it)
-- returns: ok
-- event: cap
local queue, before = ARGV[1], call('HGET', queues, ARGV[1]) or ''
local paused = string.find(before, '^paused') and 'paused' or ''
local limit = tonumber(ARGV[2]) or tonumber(string.match(before, ' (%d+)$')) or -1
local most = tonumber(ARGV[3]) or tonumber(string.match(before, 'max=(%d+)%.')) or -1
local waiting_most = most >= 0 and ' max=' .. most .. '.' or ''   -- ends in no digit, unlike a limit
call('HSET', meta, 'settings', '1')
call('HSET', queues, queue, paused .. waiting_most .. (limit >= 0 and ' ' .. limit or ''))
groups[1] = { 'cap', queue, '', 0, ARGV[2] ~= '' and ARGV[2] or 'max ' .. ARGV[3], {}, 0 }
arrivals[queue] = ready_in(queue)
reopen({ queue })
finish()
return 'ok'
