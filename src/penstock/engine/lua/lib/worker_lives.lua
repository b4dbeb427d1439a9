-- Whether workers are alive. A worker says when it registers how long it lives without a renewal: 10 s under a
-- supervisor, 30 s inside a program. `workers` has when that time ends, `lives` how long it is.

local request = require 'request'
local keys = require 'keys'
local skills = require 'skills'
local call = request.call

local M = {}

local PAGE = 100           -- workers that are read with one command
local RENEWED_PAGE = 500   -- workers whose end is changed with one command

-- alive_until(worker) → when its life ends unless it is renewed; 0 if it is not registered.
local function alive_until(worker) return tonumber(call('ZSCORE', keys.workers, worker) or 0) end

-- is_silence(since) → no worker was heard since then: is that more than half of the life of a worker that was alive
-- at that time? Then either the server was away, so that no worker could renew, or all workers with lives so short are
-- dead. Workers that were dead by then do not count. Otherwise each pause between two calls of workers with long lives
-- would be a silence.
local function is_silence(since)
  local longest, from = 2 * (request.now - since), 0
  while true do
    local page = call('ZRANGE', keys.lives, '-inf', '(' .. longest, 'BYSCORE', 'LIMIT', from, PAGE)
    for _, worker in ipairs(page) do
      if alive_until(worker) > since then return true end
    end
    if #page < PAGE then return false end
    from = from + PAGE
  end
end

-- shorten_lives(): the clock was set back, so the ends of lives in `workers` are too late. They become what a renewal
-- would make them now. This looks at all workers, once for each step of the clock: 3,000 take a few milliseconds.
local function shorten_lives()
  local rows = call('ZRANGE', keys.workers, '(' .. request.now, '(inf', 'BYSCORE', 'WITHSCORES')
  for from = 1, #rows, 2 * RENEWED_PAGE do
    local workers, command = {}, { 'ZADD', keys.workers }
    for i = from, math.min(from + 2 * RENEWED_PAGE - 1, #rows), 2 do workers[#workers + 1] = rows[i] end
    for i, life in ipairs(call('ZMSCORE', keys.lives, unpack(workers))) do
      local ends, latest = tonumber(rows[from + 2 * i - 1]), life and request.now + life
      if latest and ends > latest then
        command[#command + 1] = latest
        command[#command + 1] = workers[i]
      end
    end
    if command[3] then call(unpack(command)) end
  end
end

-- heard() → when the last silence ended. It is called when any worker registers, renews or looks for dead workers.
-- After a silence each worker has one life of its own to renew in, whichever worker is heard first.
function M.heard()
  local stored = call('HMGET', keys.meta, 'seen', 'resumed')
  local seen, resumed = tonumber(stored[1]) or request.now, tonumber(stored[2]) or 0
  local was_set_back = request.now < seen   -- the clock
  if was_set_back or is_silence(seen) then resumed = request.now end
  if was_set_back then shorten_lives() end
  call('HSET', keys.meta, 'seen', request.now, 'resumed', math.min(resumed, request.now))
  return resumed
end

-- is_dead(worker, resumed, life) → is its life over, and the last silence longer ago than its life? A worker that is
-- not registered is past its life, and `life` is how long that is.
function M.is_dead(worker, resumed, life)
  return alive_until(worker) < request.now and request.now >= resumed + (call('ZSCORE', keys.lives, worker) or life)
end

-- queues_of(worker) → the queues that it registered for.
local function queues_of(worker)
  local is_readable, node = pcall(cmsgpack.unpack, call('HGET', keys.nodes, worker) or '')
  local queues = is_readable and type(node) == 'table' and node[2]
  return type(queues) == 'table' and queues or { '*' }
end

-- remove_from_idle(worker): it no longer waits for work in any queue.
function M.remove_from_idle(worker)
  for _, queue in ipairs(queues_of(worker)) do call('ZREM', keys.idle, queue .. SEP .. worker, AT_REST .. worker) end
end

-- forget(worker): forgets a worker for good. Its name is refused from now on.
function M.forget(worker)
  M.remove_from_idle(worker)
  call('ZADD', keys.retired, request.now, worker)
  call('ZREM', keys.workers, worker)
  call('ZREM', keys.lives, worker)
  call('HDEL', keys.nodes, worker)
  skills.forget_skills(worker)
  call('HDEL', keys.calls, worker)
end

return M
