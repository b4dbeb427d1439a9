-- register: a worker begins its life. Its id names one incarnation and is never used again.
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
  local worker = request.args[1]
  if call('ZSCORE', keys.retired, worker) then return 'retired' end
  local names = {}
  for at = 4, request.argc do names[#names + 1] = request.args[at] end
  worker_lives.heard()
  worker_lives.remove_from_idle(worker)
  call('HSET', keys.nodes, worker, cmsgpack.pack({ request.args[3], names, tonumber(request.args[2]), request.now }))
  call('ZADD', keys.lives, request.args[2], worker)
  call('ZADD', keys.workers, request.now + request.args[2], worker)
  skills.note_skills(worker, request.args[3], names)
  force_skiplists.force_skiplists()
  return 'ok'
end

return M
