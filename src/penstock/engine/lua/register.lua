-- register: a worker begins its life. Its id names one incarnation and is never used again.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish skills life trees
-- args: worker, life in ms, information as JSON, the names of its queues or *
-- returns: ok | retired
local worker = ARGV[1]
if call('ZSCORE', retired, worker) then return 'retired' end
local names = {}
for at = 4, ARGC do names[#names + 1] = ARGV[at] end
heard()
rouse(worker)
call('HSET', nodes, worker, cmsgpack.pack({ ARGV[3], names, tonumber(ARGV[2]), now }))
call('ZADD', lives, ARGV[2], worker)
call('ZADD', workers, now + ARGV[2], worker)
note_skills(worker, ARGV[3], names)
be_trees()
return 'ok'
