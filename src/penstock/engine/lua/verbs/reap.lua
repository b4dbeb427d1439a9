-- reap: the jobs of dead workers: running → ready | held at the head of the line, or → dead after too many crashes.
-- Anyone may call it, any number of callers at once. A worker that holds jobs and is not registered is dead, too.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts nodes skills
--       workers calls retired lives
-- ARGV: how many jobs at most, after how many crashes a job is dead, life in ms of a worker that is not registered,
--       cause as JSON; then, to reap one worker that is known to be dead: its id, and the ids of the jobs that had
--       really started, because only these are charged with a crash
-- returns: how many jobs were taken back, 1 if there are more
-- event: reap

-- h is the header of a job.

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local settle = require 'settle'
local transition = require 'transition'
local worker_lives = require 'worker_lives'
local call = request.call

local M = {}

local HOLDERS = 50         -- workers that hold jobs, of which one call checks whether they are registered
local MAX_WORKERS = 100    -- whose life is over, that one call looks at

local max_crashes
local cause_json
local known_dead           -- the worker that is known to be dead; false to look for dead workers
local started              -- id → true, of its jobs that had started

-- is_charged(id) → does the death of its worker count as a crash of this job?
local function is_charged(id) return not known_dead or started[id] end

-- take_back(id, h): the worker that ran this job is dead.
local function take_back(id, h)
  if not is_charged(id) then
    h[RELEASES] = h[RELEASES] + 1
    return lane_entry.line_up('reap', id, h, 'not_started')
  end
  settle.remember_attempt(id, h, 'crash', cause_json)
  h[CRASHES] = h[CRASHES] + 1
  if h[CRASHES] < max_crashes then return lane_entry.line_up('reap', id, h, 'crash') end
  h[REASON] = 'crash_loop'
  transition.move('reap', id, h, 'dead', 'crash_loop')
end

-- next_holder(worker) → the next worker by name that holds jobs; '' behind the last one.
local function next_holder(worker)
  local from = worker == '' and '(' or '[' .. worker .. AFTER
  local member = call('ZRANGE', keys.leases, from, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
  return member and string.match(member, '^[^\31]*') or ''
end

-- add_unregistered(workers, resumed, life): adds some dead workers that hold jobs and are not registered. Each call
-- looks at a few holders, from where the last call ended.
local function add_unregistered(workers, resumed, life)
  local worker = call('HGET', keys.meta, 'stray') or ''
  for _ = 1, HOLDERS do
    worker = next_holder(worker)
    if worker == '' then break end
    if not call('ZSCORE', keys.workers, worker) and worker_lives.is_dead(worker, resumed, life) then
      workers[#workers + 1] = worker
    end
  end
  call('HSET', keys.meta, 'stray', worker)
end

-- dead_workers(resumed, life) → some dead workers: registered ones whose life is over, and others that hold jobs.
-- `life` is that of the others, and `resumed` when the last silence ended (lib/worker_lives.lua).
local function dead_workers(resumed, life)
  local workers = {}
  local late = call('ZRANGE', keys.workers, '-inf', '(' .. request.now, 'BYSCORE', 'LIMIT', 0, MAX_WORKERS)
  for _, worker in ipairs(late) do
    if worker_lives.is_dead(worker, resumed, life) then workers[#workers + 1] = worker end
  end
  add_unregistered(workers, resumed, life)
  return workers
end

-- jobs_of(workers, limit) → up to `limit` members of `leases`: the jobs of these workers.
local function jobs_of(workers, limit)
  local members = {}
  for _, worker in ipairs(workers) do
    for _, member in ipairs(jobs.held_by(worker, limit - #members)) do members[#members + 1] = member end
    if #members >= limit then break end
  end
  return members
end

-- forget_workers(workers) → true if some of them still hold jobs; it forgets the others.
local function forget_workers(workers)
  local are_left = false
  for _, worker in ipairs(workers) do
    if #jobs.held_by(worker, 1) > 0 then are_left = true else worker_lives.forget(worker) end
  end
  return are_left
end

local function read_arguments()
  local args = request.args
  max_crashes, cause_json = tonumber(args[2]), args[4]
  known_dead, started = request.argc >= 5 and args[5], {}
  for at = 6, request.argc do started[args[at]] = true end
end

function M.run()
  local limit, life = tonumber(request.args[1]), tonumber(request.args[3])
  read_arguments()
  local resumed = worker_lives.heard()
  local workers = known_dead and { known_dead } or dead_workers(resumed, life)
  local members = jobs_of(workers, limit)
  settle.take_back('reap', members, take_back)
  finish.write_all()
  local are_left = forget_workers(workers)
  local is_full_page = not known_dead and #members >= limit   -- there may be other dead workers
  return { #members, (are_left or is_full_page) and 1 or 0 }
end

return M
