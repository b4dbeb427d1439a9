-- renew: workers stay alive, whatever they run and however long it takes.
-- FLAGS: allow-oom
-- KEYS: meta idle nodes skills workers calls retired lives cancels
-- ARGV: life in ms, then the workers
-- returns: per worker: ok | unknown; the running jobs whose cancelling was asked for: worker, id, …; how many others are
--          past their life, so that somebody should reap

local request = require 'request'
local keys = require 'keys'
local worker_lives = require 'worker_lives'
local call = request.call

local M = {}

function M.run()
  local words, asked, alive = {}, {}, { 'ZADD', keys.workers, 'XX' }
  local late = call('ZCOUNT', keys.workers, '-inf', '(' .. request.now)
  for at = 2, request.argc do
    local worker = request.args[at]
    local until_then = call('ZSCORE', keys.workers, worker)
    if until_then then
      if tonumber(until_then) < request.now then late = late - 1 end
      words[#words + 1] = 'ok'
      alive[#alive + 1] = request.now + request.args[1]
      alive[#alive + 1] = worker
      local members = call('ZRANGE', keys.cancels, '[' .. worker .. SEP, '(' .. worker .. AFTER, 'BYLEX')
      for _, member in ipairs(members) do
        asked[#asked + 1] = worker
        asked[#asked + 1] = string.sub(member, #worker + 2)
      end
    else
      words[#words + 1] = 'unknown'
    end
  end
  worker_lives.heard()
  if #alive > 3 then call(unpack(alive)) end
  return { words, asked, late }
end

return M
