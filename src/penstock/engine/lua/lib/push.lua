-- A job for a worker that has nothing to do: where nobody is in line, that worker gets it here and now, as the answer to the next call of
-- lease that it will make, by letter. If the letter is lost, this call has been made, and so is answered with what it gave.

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

local BY_LETTER, AT_ONCE_ASLEEP = 16384, 16   -- bytes of payload, at most; members of `idle` to look at

-- is_heard(worker) → does anybody listen for it?
local function is_heard(worker)
  local found = redis.pcall('PUBSUB', 'SHARDNUMSUB', messages.channel('to:' .. worker))
  return not found.err and found[2] > 0
end

-- at_rest(queue, task, asleep) → a worker of this queue that has nothing to do and knows the task, if others do; and its member of
-- `idle`, of which these are the first. If there are more, those of the queue are asked for.
local function at_rest(queue, task, asleep)
  local all, resting = #asleep < AT_ONCE_ASLEEP, {}
  for i = 2, all and #asleep or 0 do resting[asleep[i]] = true end
  for _, name in ipairs({ queue, '*' }) do
    local from = #name + 1
    local some = all and asleep or call('ZRANGE', keys.idle, '[' .. name .. SEP, '(' .. name .. AFTER, 'BYLEX', 'LIMIT', 0, 8)
    for _, member in ipairs(some) do
      if string.sub(member, 1, from) == name .. SEP then
        local worker = string.sub(member, from + 1)
        local rests = all and resting[AT_REST .. worker] or not all and call('ZSCORE', keys.idle, AT_REST .. worker)
        if rests and (meta.uneven ~= '1' or unknown_tasks.may_take(worker, queue, task)) and is_heard(worker) then return worker, member end
      end
    end
  end
end

-- idle_worker(label, id, payload) → who gets this job at once. Not if others are in line, or tasks are halted.
function M.idle_worker(label, id, payload)
  local asleep = call('ZRANGE', keys.idle, '0', AT_ONCE_ASLEEP - 1)
  if #asleep < 2 or #payload > BY_LETTER or (meta.halted or '') ~= '' then return nil end
  local worker, member = at_rest(label.queue, label.task, asleep)
  if not worker or queue_room.count_ready(label.queue) > 0 or call('HEXISTS', keys.jobs, id) == 1 then return nil end
  call('ZREM', keys.idle, member, AT_REST .. worker)
  return worker
end

-- next_call(worker) → the number of its next call, which is made now.
local function next_call(worker)
  local made = call('HGET', keys.calls, worker) or '0'
  local number = string.match(made, '%d+$') + 1
  call('HSET', keys.calls, worker, made .. ' ' .. number)
  return number
end

-- hand_over(worker, id, new, payload) → its fence: it runs there.
local function hand_over(worker, id, new, payload)
  local number, fence = next_call(worker), math.max(meta.fence or 0, request.now_us - 1) + 1
  local claim = worker .. SEP .. number
  local leased = record.leased_record(record.run_front(claim), fence, claim, new)
  call('HSET', keys.jobs, id, leased)
  call('ZADD', keys.leases, '0', claim .. SEP .. id)
  local text = 'job' .. SEP .. number .. SEP .. id .. SEP .. #leased .. SEP .. leased
  messages.send('to:' .. worker, #payload < INLINE and text or text .. payload)
  return fence
end

-- add_event(number, n, lines): the event. Every hundredth call is enough to keep the stream short: others do it each time.
function M.add_event(number, n, lines)
  if number % 100 == 0 then
    call('XADD', keys.events, 'MAXLEN', '~', EVENTS, '*', 'e', encode_cache.event_entry(n, lines))
  else
    call('XADD', keys.events, '*', 'e', encode_cache.event_entry(n, lines))
  end
end

-- count_handed_over(label): it is counted, as leased, too, after no wait to speak of. A name without running jobs may have been forgotten.
local function count_handed_over(label)
  local start = encode_cache.minute_prefix(label)
  local entered, leased, waited = label.count, start .. 'lease', start .. 'wait' .. SHORTEST
  local counted = call('HMGET', keys.stats, entered, leased, waited)
  local n = (counted[1] or 0) + 1
  local running = call('HINCRBY', keys.counts, label.queue .. SEP .. 'running', '1')
  call('HSET', keys.stats, entered, n, leased, (counted[2] or 0) + 1, waited, (counted[3] or 0) + 1)
  if n == 1 or running == 1 then call('HSETNX', keys.queues, label.queue, '') end
end

-- push(worker, id, label, form, payload, number) → the answer: that worker has it. The numbers in `meta` are these.
function M.push(worker, id, label, form, payload, number)
  if #payload >= INLINE then call('HSET', keys.payloads, id, payload) end
  local fence = hand_over(worker, id, record.new_record(READY_FRONT, number, form, payload), payload)
  call('HSET', keys.meta, 'accepted', (meta.accepted or 0) + 1, 'seq', number, 'fence', fence)
  count_handed_over(label)
  local subject = encode_cache.packed_text(id)
  M.add_event(number, 2, label.entered .. subject .. label.leased .. subject)
  return 'running'
end

return M
