-- register: a worker begins its life. Its name is never used again.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues nodes skills workers
--       calls retired lives
-- ARGV: worker, life in ms, information as JSON, the names of its queues or *
-- returns: ok | retired

local request = require 'request'
local keys = require 'keys'
local force_skiplists = require 'force_skiplists'
local skills = require 'skills'
local worker_lives = require 'worker_lives'
local call = request.call

local M = {}

function M.run()
  local worker, life, info, queues = request.args[1], request.args[2], request.args[3], {}
  for at = 4, request.argc do queues[#queues + 1] = request.args[at] end
  if call('ZSCORE', keys.retired, worker) then return 'retired' end
  worker_lives.heard()
  worker_lives.remove_from_idle(worker)   -- from the queues that it registered for before, if it did
  call('HSET', keys.nodes, worker, cmsgpack.pack({ info, queues, tonumber(life), request.now }))
  call('ZADD', keys.lives, life, worker)
  call('ZADD', keys.workers, request.now + life, worker)
  skills.note_skills(worker, info, queues)
  force_skiplists.force_skiplists()
  return 'ok'
end

return M
