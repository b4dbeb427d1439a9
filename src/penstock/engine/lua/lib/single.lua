-- A single job: most calls of enqueue bring one that is new, has no header, lane or batch, and finds room in its queue. This is all
-- that happens to it, before anything is prepared for what other calls need: a third of the work.
-- Where nobody is in line and a worker has nothing to do, that worker gets it here and now, as the answer to the next call of
-- lease that it will make, by letter. If the letter is lost, this call has been made, and so is answered with what it gave.
-- keys: jobs ready payloads queues counts stats events leases calls

local BY_LETTER = 16384   -- bytes of payload, at most

-- is_heard(worker) → does anybody listen for it?
local function is_heard(worker)
  local found = redis.pcall('PUBSUB', 'SHARDNUMSUB', address('to:' .. worker))
  return not found.err and found[2] > 0
end

-- at_rest(queue) → a worker of this queue that has nothing to do.
local function at_rest(queue)
  for _, name in ipairs({ queue, '*' }) do
    for _, member in ipairs(call('ZRANGE', idle, '[' .. name .. SEP, '(' .. name .. AFTER, 'BYLEX', 'LIMIT', 0, 8)) do
      local worker = string.sub(member, #name + 2)
      if call('ZSCORE', idle, AT_REST .. worker) and is_heard(worker) then
        call('ZREM', idle, member, AT_REST .. worker)
        return worker
      end
    end
  end
end

-- taker(queue, setting, id, payload) → who gets this job at once. Not if others are in line, tasks are halted, or anything is set
-- for the queue: it may be paused, or run no more than so many.
local function taker(queue, setting, id, payload)
  if (setting or '') ~= '' or #payload > BY_LETTER or (halted_now or '') ~= '' then return nil end
  if call('HEXISTS', jobs, id) == 1 then return nil end
  local first = call('ZRANGE', ready, '[' .. queue .. SEP, '(' .. queue .. AFTER, 'BYLEX', 'LIMIT', 0, 1)[1]
  return not first and at_rest(queue) or nil
end

-- next_call(worker) → the number of its next call, which is made now.
local function next_call(worker)
  local made = call('HGET', calls, worker) or '0'
  local number = string.match(made, '%d+$') + 1
  call('HSET', calls, worker, made .. ' ' .. number)
  return number
end

-- hand_over(worker, id, record, payload) → its fence: it runs there.
local function hand_over(worker, id, record, payload)
  local number, fence = next_call(worker), math.max(fence_before or 0, now_us - 1) + 1
  local claim = worker .. SEP .. number
  record = IS_BEGUN .. mark_of(claim) .. struct.pack('>I8', fence) .. record
  call('HSET', jobs, id, record)
  call('ZADD', leases, '0', claim .. SEP .. id)
  local text = table.concat({ 'job', number, id, #record, record }, SEP)
  mail('to:' .. worker, #payload < 256 and text or text .. payload)
  return fence
end

-- setting_of(queue) → what is set for it; '' where nothing was ever set for any.
local function setting_of(queue)
  if not settings_before then return '' end
  return call('HGET', queues, queue)
end

-- count_entered(queue, setting, minute, n): so many came. The first of a minute makes sure that the queue is known.
local function count_entered(queue, setting, minute, n)
  local this_minute = call('HINCRBY', stats, minute .. 'enqueue', n)
  if not setting or this_minute == tonumber(n) then call('HSETNX', queues, queue, '') end
end

-- enter_single(id, mark, payload) → the answer, or nothing if it is not such a one.
local function enter_single(id, mark, payload)
  local queue, priority, task = in_label(mark)
  local setting = queue and setting_of(queue)
  if not queue or room_in(queue, setting) < 1 then return nil end
  local asleep = asleep_before == '1' and call('ZCARD', idle) > 1
  local number, worker = (seq_before or 0) + 1, asleep and taker(queue, setting, id, payload)
  if #payload >= 256 then
    if not worker and call('HEXISTS', jobs, id) == 1 then return nil end
    call('HSET', payloads, id, payload)
  end
  local record, state = record_of(mark, number, payload), worker and 'running' or 'ready'
  local accepted = (accepted_before or 0) + 1
  if worker then
    call('HSET', meta, 'accepted', accepted, 'seq', number, 'fence', hand_over(worker, id, record, payload))
  else
    if call('HSETNX', jobs, id, record) == 0 then return nil end
    call('HSET', meta, 'accepted', accepted, 'seq', number)
    call('ZADD', ready, '0', queue .. SEP .. rank_of(priority, number) .. SEP .. id)
  end
  local minute, news = math.floor(now / 60000) .. SEP .. queue .. SEP, news_of('enqueue', queue, task, 0, id)
  count_entered(queue, setting, minute, '1')
  if worker then
    call('HINCRBY', counts, queue .. SEP .. 'running', '1')
    call('HINCRBY', stats, minute .. 'lease', '1')
    call('HINCRBY', stats, minute .. 'wait' .. SHORTEST, '1')
    news = news .. news_of('lease', queue, task, 1, id)
  end
  call('XADD', events, 'MAXLEN', '~', EVENTS, '*', 'e', entry_of(worker and 2 or 1, news))
  if not worker then wake_any({ [queue] = 1 }) end
  return worker and { 'created', id, state } or { 'created' }
end

local single = ARGC == 3 and string.byte(ARGV[2]) == PLAIN and enter_single(ARGV[1], ARGV[2], ARGV[3])
if single then return single end
