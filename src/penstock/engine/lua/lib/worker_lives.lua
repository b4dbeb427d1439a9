-- Workers' lives. Each worker says when it registers how long it lives without a renewal: those of a supervisor 10 s, those
-- inside a program 30 s.

local request = require 'request'
local keys = require 'keys'
local skills = require 'skills'
local call = request.call

local M = {}

-- alive_until(worker) → when its life ends, unless it is renewed; 0 of one that is not registered.
local function alive_until(worker) return tonumber(call('ZSCORE', keys.workers, worker) or 0) end

-- is_silence(since) → was nobody heard for more than half of the life of some worker that was alive then? Either the server was
-- away and nobody could renew, or all workers with so short a life are dead. Workers that were dead by then do not count, for
-- otherwise they would make a silence of every pause between two calls of those that live longer.
local function is_silence(since)
  local from = 0
  while true do
    local page = call('ZRANGE', keys.lives, '-inf', '(' .. 2 * (request.now - since), 'BYSCORE', 'LIMIT', from, 100)
    for _, worker in ipairs(page) do
      if alive_until(worker) > since then return true end
    end
    if #page < 100 then return false end
    from = from + 100
  end
end

-- shorten_lives(): the clock stepped back, so what was reckoned by the old one ends too late. Nobody lives longer from now than a
-- renewal gives. It looks at all workers, once for each step: 3,000 of them take a few milliseconds.
local function shorten_lives()
  local rows = call('ZRANGE', keys.workers, '(' .. request.now, '(inf', 'BYSCORE', 'WITHSCORES')
  for from = 1, #rows, 1000 do
    local names, late = {}, { 'ZADD', keys.workers }
    for i = from, math.min(from + 999, #rows), 2 do names[#names + 1] = rows[i] end
    for i, life in ipairs(call('ZMSCORE', keys.lives, unpack(names))) do
      local ends = life and request.now + life
      if ends and tonumber(rows[from + 2 * i - 1]) > ends then late[#late + 1], late[#late + 2] = ends, names[i] end
    end
    if late[3] then call(unpack(late)) end
  end
end

-- heard(): somebody registered, renewed or looked after the others. → when the last silence ended. From then on each worker has
-- one life of its own to renew in, whoever speaks first.
function M.heard()
  local found = call('HMGET', keys.meta, 'seen', 'resumed')
  local seen, resumed = tonumber(found[1]) or request.now, tonumber(found[2]) or 0
  if request.now < seen or is_silence(seen) then resumed = request.now end
  if request.now < seen then shorten_lives() end
  call('HSET', keys.meta, 'seen', request.now, 'resumed', math.min(resumed, request.now))
  return resumed
end

-- is_dead(worker, resumed, life) → is it past its life, and was there no silence in the last life? One that is not registered is
-- past its life, and has the life that is given.
function M.is_dead(worker, resumed, life)
  return alive_until(worker) < request.now and request.now >= resumed + (call('ZSCORE', keys.lives, worker) or life)
end

-- remove_from_idle(worker): it no longer waits for work in any queue.
function M.remove_from_idle(worker)
  local fine, node = pcall(cmsgpack.unpack, call('HGET', keys.nodes, worker) or '')
  if not fine or type(node) ~= 'table' or type(node[2]) ~= 'table' then node = { '', { '*' } } end
  for _, queue in ipairs(node[2]) do call('ZREM', keys.idle, queue .. SEP .. worker, AT_REST .. worker) end
end

-- forget(worker): forgets a worker for good; its id is refused from now on.
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
