-- Push: a new job goes to an idle worker at once, if no other job of its queue is ready. Enqueue leases it in the name
-- of the worker, as the answer to the next call of lease that the worker would make, and sends that answer. If the
-- message is lost, the worker makes this call itself later, and gets the same answer. `label` is that of
-- lib/encode_cache.lua.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local encode_cache = require 'encode_cache'
local messages = require 'messages'
local queue_room = require 'queue_room'
local unknown_tasks = require 'unknown_tasks'
local call = request.call

local M = {}

local MAX_PUSHED_PAYLOAD = 16384   -- bytes
local MAX_LISTED = 16              -- members of `idle` that are read to begin with
local MAX_CANDIDATES = 8           -- workers of a queue to choose from, if there are more members

-- has_subscriber(worker) → does anybody listen to the channel of this worker?
local function has_subscriber(worker)
  local reply = redis.pcall('PUBSUB', 'SHARDNUMSUB', messages.channel('to:' .. worker))
  return not reply.err and reply[2] > 0
end

-- free_workers(members) → these members of `idle`, as member → true. AT_REST .. worker stands for one without any
-- job.
local function free_workers(members)
  local free = {}
  for i = 2, #members do free[members[i]] = true end   -- the first is the sentinel
  return free
end

-- find_worker(queue, task, idle) → a worker of this queue that has no job and knows the task, and its member of
-- `idle`. `idle` is the list of the first members; if there may be more, those of the queue are read.
local function find_worker(queue, task, idle)
  local is_all = #idle < MAX_LISTED
  local free = is_all and free_workers(idle)
  for _, name in ipairs({ queue, '*' }) do
    local prefix = name .. SEP
    local members = is_all and idle
      or call('ZRANGE', keys.idle, '[' .. prefix, '(' .. name .. AFTER, 'BYLEX', 'LIMIT', 0, MAX_CANDIDATES)
    for _, member in ipairs(members) do
      if string.sub(member, 1, #prefix) == prefix then
        local worker = string.sub(member, #prefix + 1)
        local is_free
        if is_all then is_free = free[AT_REST .. worker] else is_free = call('ZSCORE', keys.idle, AT_REST .. worker) end
        local may_take = is_free and (meta.uneven ~= '1' or unknown_tasks.may_take(worker, queue, task))
        if may_take and has_subscriber(worker) then return worker, member end
      end
    end
  end
end

-- idle_worker(label, id, payload) → the worker that gets this job at once; it is not idle any more. Nothing if there
-- is none, if other jobs of the queue are ready, or if any task is paused.
function M.idle_worker(label, id, payload)
  local idle = call('ZRANGE', keys.idle, '0', MAX_LISTED - 1)
  if #idle < 2 or #payload > MAX_PUSHED_PAYLOAD or (meta.halted or '') ~= '' then return nil end
  local worker, member = find_worker(label.queue, label.task, idle)
  if not worker then return nil end
  if queue_room.count_ready(label.queue) > 0 or call('HEXISTS', keys.jobs, id) == 1 then return nil end
  call('ZREM', keys.idle, member, AT_REST .. worker)
  return worker
end

-- make_next_call(worker) → the number of its next call of lease, which counts as made from now on.
local function make_next_call(worker)
  local calls = call('HGET', keys.calls, worker) or '0'
  local number = string.match(calls, '%d+$') + 1
  call('HSET', keys.calls, worker, calls .. ' ' .. number)
  return number
end

-- lease_to(worker, id, packed, payload) → the fence. The worker is sent this new job, and has it from now on.
local function lease_to(worker, id, packed, payload)
  local number, fence = make_next_call(worker), math.max(meta.fence or 0, request.now_us - 1) + 1
  local claim = worker .. SEP .. number
  local leased = record.leased_record(record.run_front(claim), fence, claim, packed)
  call('HSET', keys.jobs, id, leased)
  call('ZADD', keys.leases, '0', claim .. SEP .. id)
  local text = 'job' .. SEP .. number .. SEP .. id .. SEP .. #leased .. SEP .. leased
  messages.send('to:' .. worker, #payload < INLINE and text or text .. payload)
  return fence
end

-- add_event(number, n, lines): stores the event of this call, of n lines. The stream is trimmed once for a hundred
-- places in line; calls of other verbs trim it each time.
function M.add_event(number, n, lines)
  if number % 100 == 0 then
    call('XADD', keys.events, 'MAXLEN', '~', EVENTS, '*', 'e', encode_cache.event_entry(n, lines))
  else
    call('XADD', keys.events, '*', 'e', encode_cache.event_entry(n, lines))
  end
end

-- count_pushed(label): counts one job as enqueued, leased and running, after the shortest wait. Its queue becomes
-- known: the name of a queue without running jobs may have been forgotten.
local function count_pushed(label)
  local prefix = encode_cache.minute_prefix(label)
  local enqueue_field, lease_field, wait_field = label.enqueue_field, prefix .. 'lease', prefix .. 'wait' .. SHORTEST
  local sums = call('HMGET', keys.stats, enqueue_field, lease_field, wait_field)
  local n_enqueued = (sums[1] or 0) + 1
  local n_running = call('HINCRBY', keys.counts, label.queue .. SEP .. 'running', '1')
  call('HSET', keys.stats, enqueue_field, n_enqueued, lease_field, (sums[2] or 0) + 1, wait_field, (sums[3] or 0) + 1)
  if n_enqueued == 1 or n_running == 1 then call('HSETNX', keys.queues, label.queue, '') end
end

-- push(worker, id, label, form, payload, number) → the state of this new job, which the worker has from now on.
function M.push(worker, id, label, form, payload, number)
  if #payload >= INLINE then call('HSET', keys.payloads, id, payload) end
  local fence = lease_to(worker, id, record.new_record(READY_FRONT, number, form, payload), payload)
  call('HSET', keys.meta, 'accepted', (meta.accepted or 0) + 1, 'seq', number, 'fence', fence)
  count_pushed(label)
  local packed_id = encode_cache.packed_text(id)
  M.add_event(number, 2, label.enqueue_event .. packed_id .. label.lease_event .. packed_id)
  return 'running'
end

return M
