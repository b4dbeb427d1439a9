-- A single job: most calls of enqueue bring one that is new, has no header, lane or batch, and finds room in its queue. This is all
-- that happens to it, before anything is prepared for what other calls need: a third of the work.
-- Where nobody is in line and a worker has nothing to do, that worker gets it here and now, as the answer to the next call of
-- lease that it will make, by letter. If the letter is lost, this call has been made, and so is answered with what it gave.
-- keys: jobs ready heads payloads queues counts stats events leases calls

-- A page that followed another at once must not come before it, should that have been asked for more keys. What tells is a
-- job of that which only it can have brought.
local behind = ARGC % 3 == 1 and ARGV[ARGC]
if behind then ARGC = ARGC - 1 end
if behind and call('HEXISTS', jobs, behind) == 0 then return {} end

local BY_LETTER, AT_ONCE_ASLEEP = 16384, 16   -- bytes of payload, at most; members of `idle` to look at

-- is_heard(worker) → does anybody listen for it?
local function is_heard(worker)
  local found = redis.pcall('PUBSUB', 'SHARDNUMSUB', address('to:' .. worker))
  return not found.err and found[2] > 0
end

-- at_rest(queue, task, asleep) → a worker of this queue that has nothing to do and knows the task, if others do; and its member of
-- `idle`, of which these are the first. If there are more, those of the queue are asked for.
local function at_rest(queue, task, asleep)
  local all, resting = #asleep < AT_ONCE_ASLEEP, {}
  for i = 2, all and #asleep or 0 do resting[asleep[i]] = true end
  for _, name in ipairs({ queue, '*' }) do
    local from = #name + 1
    local some = all and asleep or call('ZRANGE', idle, '[' .. name .. SEP, '(' .. name .. AFTER, 'BYLEX', 'LIMIT', 0, 8)
    for _, member in ipairs(some) do
      if string.sub(member, 1, from) == name .. SEP then
        local worker = string.sub(member, from + 1)
        local rests = all and resting[AT_REST .. worker] or not all and call('ZSCORE', idle, AT_REST .. worker)
        if rests and (uneven_now ~= '1' or may_take(worker, queue, task)) and is_heard(worker) then return worker, member end
      end
    end
  end
end

-- taker(label, asleep, id, payload) → who gets this job at once. Not if others are in line, or tasks are halted.
local function taker(label, asleep, id, payload)
  if #payload > BY_LETTER or (halted_now or '') ~= '' then return nil end
  local worker, member = at_rest(label.queue, label.task, asleep)
  if not worker or ready_in(label.queue) > 0 or call('HEXISTS', jobs, id) == 1 then return nil end
  call('ZREM', idle, member, AT_REST .. worker)
  return worker
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
  record = IS_BEGUN .. packed_text(claim) .. stamp() .. struct.pack('>BI8', 207, fence) .. record
  call('HSET', jobs, id, record)
  call('ZADD', leases, '0', claim .. SEP .. id)
  local text = 'job' .. SEP .. number .. SEP .. id .. SEP .. #record .. SEP .. record
  mail('to:' .. worker, #payload < 256 and text or text .. payload)
  return fence
end

-- setting_of(queue) → what is set for it; '' where nothing was ever set for any.
local function setting_of(queue)
  if not settings_before then return '' end
  return call('HGET', queues, queue)
end

-- tell_entered(number, n, lines): the event. Every hundredth call is enough to keep the stream short: others do it each time.
local function tell_entered(number, n, lines)
  if number % 100 == 0 then
    call('XADD', events, 'MAXLEN', '~', EVENTS, '*', 'e', entry_of(n, lines))
  else
    call('XADD', events, '*', 'e', entry_of(n, lines))
  end
end

-- count_handed_over(label): it is counted, as leased, too, after no wait to speak of. A name without running jobs may have been forgotten.
local function count_handed_over(label)
  local start = minute_of(label)
  local entered, leased, waited = label.count, start .. 'lease', start .. 'wait' .. SHORTEST
  local counted = call('HMGET', stats, entered, leased, waited)
  local n = (counted[1] or 0) + 1
  local running = call('HINCRBY', counts, label.queue .. SEP .. 'running', '1')
  call('HSET', stats, entered, n, leased, (counted[2] or 0) + 1, waited, (counted[3] or 0) + 1)
  if n == 1 or running == 1 then call('HSETNX', queues, label.queue, '') end
end

-- enter_by_letter(worker, id, label, mark, payload, number) → the answer: that worker has it. The numbers in `meta` are these.
local function enter_by_letter(worker, id, label, mark, payload, number)
  if #payload > 255 then call('HSET', payloads, id, payload) end
  local fence = hand_over(worker, id, near_record(mark, number, payload), payload)
  call('HSET', meta, 'accepted', (accepted_before or 0) + 1, 'seq', number, 'fence', fence)
  count_handed_over(label)
  local subject = packed_text(id)
  tell_entered(number, 2, label.entered .. subject .. label.leased .. subject)
  return 'running'
end

-- precede(label, number) → true if its queue had no entry in `heads`, so that its name may be unknown. It has one from now on, at this
-- place or before it; where the last such job was of the same queue and priority, `meta` tells that it still has.
local function precede(label, number)
  return headed_before ~= label.line and call('ZADD', heads, 'LT', label.first + number, label.queue) == 1
end

-- advance(label, n, number): the numbers in `meta` after n more jobs, and what precede() goes by.
local function advance(label, n, number)
  local accepted = (accepted_before or 0) + n
  if headed_before == label.line then
    call('HSET', meta, 'accepted', accepted, 'seq', number)
  else
    call('HSET', meta, 'accepted', accepted, 'seq', number, 'headed', label.line)
  end
end

-- enter_single(id, mark, payload) → the answer, or nothing if it is not such a one. The first job of a minute makes sure that its
-- queue is known.
local function enter_single(id, mark, payload)
  local label = label_in(mark)
  if not label then return nil end
  local queue, number = label.queue, (seq_before or 0) + 1
  local setting = setting_of(queue)
  if setting ~= '' and room_in(queue, setting) < 1 then return nil end
  if asleep_before == '1' and (setting or '') == '' then   -- else it may be paused, or run no more than so many
    local asleep = call('ZRANGE', idle, '0', AT_ONCE_ASLEEP - 1)
    local worker = #asleep > 1 and taker(label, asleep, id, payload)
    if worker then return enter_by_letter(worker, id, label, mark, payload, number) end
  end
  if #payload > 255 then
    if call('HEXISTS', jobs, id) == 1 then return nil end
    call('HSET', payloads, id, payload)
  end
  if call('HSETNX', jobs, id, near_record(mark, number, payload)) == 0 then return nil end
  local is_new = precede(label, number)
  advance(label, 1, number)
  call('ZADD', ready, '0', near_place(label.line, number, id))
  minute_of(label)
  if call('HINCRBY', stats, label.count, '1') == 1 or is_new or not setting then call('HSETNX', queues, queue, '') end
  tell_entered(number, 1, label.entered .. packed_text(id))
  if asleep_before == '1' then wake_any({ [queue] = 1 }) end
  return 'ready'
end

local single = ARGC == 3 and string.byte(ARGV[2]) == PLAIN and enter_single(ARGV[1], ARGV[2], ARGV[3])
if single then return single end
