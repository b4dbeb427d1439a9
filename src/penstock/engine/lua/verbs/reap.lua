-- reap: the jobs of a dead worker: running → ready | held at the head of the line, or → dead after too many crashes.
-- Anyone may call it, any number at once. A worker that no index knows is dead too.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts nodes skills
--       workers calls retired lives
-- ARGV: how many jobs at most, crashes that bury a job, life in ms of a worker that did not register its own, cause as JSON;
--       then, to reap one worker that is known to be dead, its id and the ids of the jobs it had really started: only those
--       are charged with a crash
-- returns: how many jobs were moved, 1 if there are more
-- event: reap

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local settle = require 'settle'
local transition = require 'transition'
local worker_lives = require 'worker_lives'
local writes = require 'writes'
local call = request.call

local M = {}

local budget, named, resumed, life, started

local HOLDERS = 50   -- workers that hold jobs, of which one call looks whether they are registered

-- add_strays(found): workers that hold jobs and that no index knows. They are looked for in steps, from where the last call ended.
local function add_strays(found)
  local worker = call('HGET', keys.meta, 'stray') or ''
  for _ = 1, HOLDERS do
    local first = call('ZRANGE', keys.leases, worker == '' and '(' or '[' .. worker .. AFTER, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    worker = first and string.match(first, '^[^\31]*') or ''
    if worker == '' then break end
    if not call('ZSCORE', keys.workers, worker) and worker_lives.is_dead(worker, resumed, life) then found[#found + 1] = worker end
  end
  call('HSET', keys.meta, 'stray', worker)
end

-- dead_workers() → those that are past their life, the first hundred, and some that are not registered.
local function dead_workers()
  local found = {}
  for _, worker in ipairs(call('ZRANGE', keys.workers, '-inf', '(' .. request.now, 'BYSCORE', 'LIMIT', 0, 100)) do
    if worker_lives.is_dead(worker, resumed, life) then found[#found + 1] = worker end
  end
  add_strays(found)
  return found
end

local function lost(id, h)
  if named and not started[id] then
    h[RELEASES] = h[RELEASES] + 1
    return lane_entry.line_up('reap', id, h, 'not_started')
  end
  settle.remember_attempt(id, h, 'crash', request.args[4])
  h[CRASHES] = h[CRASHES] + 1
  if h[CRASHES] < budget then return lane_entry.line_up('reap', id, h, 'crash') end
  h[REASON] = 'crash_loop'
  transition.move('reap', id, h, 'dead', 'crash_loop')
end

function M.run()
  local limit
  limit, budget, named = tonumber(request.args[1]), tonumber(request.args[2]), request.argc >= 5 and request.args[5]
  resumed, life = worker_lives.heard(), tonumber(request.args[3])
  started = {}
  for at = 6, request.argc do started[request.args[at]] = true end
  local ids, members = {}, {}
  local gone = named and { named } or dead_workers()
  for _, worker in ipairs(gone) do
    for _, member in ipairs(jobs.held_by(worker, limit - #members)) do
      members[#members + 1] = member
      ids[#ids + 1] = jobs.last_part(member)
    end
    if #members >= limit then break end
  end
  local headers = jobs.read(ids)
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do
    local h = headers[i]
    if not h or h[STATE] ~= 'running' or h[CLAIM] .. SEP .. id ~= members[i] then
      if h or not settle.bury_if_unreadable(id, string.sub(members[i], 1, -2 - #id)) then writes.remove(keys.leases, members[i]) end
    elseif h[CANCELLING] == 1 then
      settle.end_cancelled('reap', id, h)
    else
      lost(id, h)
    end
  end
  finish.write_all()
  local more = (not named and #ids >= limit) and 1 or 0   -- a full page: there may be other dead workers
  for _, worker in ipairs(gone) do
    if #jobs.held_by(worker, 1) > 0 then more = 1 else worker_lives.forget(worker) end
  end
  return { #ids, more }
end

return M
