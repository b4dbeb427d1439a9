-- renew: workers stay alive, whatever they run and however long it takes.
-- FLAGS: allow-oom
-- KEYS: meta idle nodes skills workers calls retired lives cancels
-- ARGV: life in ms, then the workers
-- returns: per worker: ok | unknown; the running jobs that are to be cancelled: worker, id, …; how many other workers
--          are past their life, so that somebody should reap

local request = require 'request'
local keys = require 'keys'
local worker_lives = require 'worker_lives'
local call = request.call

local M = {}

-- add_cancels(cancels, worker): adds the worker and the id of each of its jobs that is to be cancelled.
local function add_cancels(cancels, worker)
  local members = call('ZRANGE', keys.cancels, '[' .. worker .. SEP, '(' .. worker .. AFTER, 'BYLEX')
  for _, member in ipairs(members) do
    cancels[#cancels + 1] = worker
    cancels[#cancels + 1] = string.sub(member, #worker + 2)
  end
end

function M.run()
  local words, cancels, command = {}, {}, { 'ZADD', keys.workers, 'XX' }
  local n_late = call('ZCOUNT', keys.workers, '-inf', '(' .. request.now)
  for at = 2, request.argc do
    local worker = request.args[at]
    local ends = call('ZSCORE', keys.workers, worker)
    words[#words + 1] = ends and 'ok' or 'unknown'
    if ends then
      if tonumber(ends) < request.now then n_late = n_late - 1 end
      command[#command + 1] = request.now + request.args[1]
      command[#command + 1] = worker
      add_cancels(cancels, worker)
    end
  end
  worker_lives.heard()   -- before the lives are longer: it asks who was alive
  if #command > 3 then call(unpack(command)) end
  return { words, cancels, n_late }
end

return M
