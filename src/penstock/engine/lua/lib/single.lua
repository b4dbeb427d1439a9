-- A single job: most calls of enqueue bring one that is new, has no header, lane or batch, and goes to a queue that nobody has
-- set anything for. This is all that happens to it, before anything is prepared for what other calls need: a third of the work.
-- keys: jobs ready payloads queues counts stats events

-- enter_single(id, mark, payload) → the answer, or nothing if it is not such a one.
local function enter_single(id, mark, payload)
  local queue, priority, task = string.match(mark, '^..([^\31]+)\31(%d%d)\31([^\31]+)\31%d+\31%d+$')
  local setting = queue and call('HGET', queues, queue)
  if not queue or (setting and setting ~= '') then return nil end
  if #payload >= 256 then
    if call('HEXISTS', jobs, id) == 1 then return nil end
    call('HSET', payloads, id, payload)
  end
  local number = (seq_before or 0) + 1
  if call('HSETNX', jobs, id, record_of(mark, number, payload)) == 0 then return nil end
  call('HSET', meta, 'accepted', (accepted_before or 0) + 1, 'seq', number)
  call('ZADD', ready, '0', queue .. SEP .. rank_of(priority, number) .. SEP .. id)
  if not setting then call('HSETNX', queues, queue, '') end
  call('HINCRBY', counts, queue .. SEP .. 'ready', 1)
  call('HINCRBY', stats, math.floor(now / 60000) .. SEP .. queue .. SEP .. 'enqueue', 1)
  local event = cmsgpack.pack({ now, { { 'enqueue', queue, task, 0, '', id } } })
  call('XADD', events, 'MAXLEN', '~', EVENTS, '*', 'e', event)
  if call('ZCARD', idle) > 1 then wake(queue, 1) end
  return { 'created', id, 'ready' }
end

local single = ARGC == 3 and string.byte(ARGV[2]) == PLAIN and enter_single(ARGV[1], ARGV[2], ARGV[3])
if single then return single end
