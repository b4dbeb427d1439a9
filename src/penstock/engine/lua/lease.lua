-- lease: ready | held → running. Gives a worker the first jobs of its queues; the pair (worker, call) names the attempts.
-- flags: allow-oom
-- keys: payloads workers calls
-- kept: as a function
-- include: header write lanes batches move line enter finish create ends candidates numbers halt
-- args: worker, call number, highest call number whose answer the worker has, how many at most, how many bytes of
--       payload at most, the names of its queues in strict order or * for all
-- returns: ok | unknown (register first) | stale (an old call, already answered), 1 if it should ask again at once,
--          then per job: id, header, payload. A resent call gets what it still holds again, and never anything new.
-- event: lease; hold for candidates that have to wait for a lane, expire and bury for those that can no longer run
local worker, number, want, bytes = ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])
local claim = worker .. SEP .. number
local answer = { 'ok', 0 }

local function give(id, packed, payload)
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = id, packed, payload
end

-- given_again() → what an earlier call gave, as far as it is not settled.
local function given_again()
  local before = still_held(claim)
  if #before > 0 then
    local packed, contents = call('HMGET', jobs, unpack(before)), call('HMGET', payloads, unpack(before))
    for i, id in ipairs(before) do give(id, packed[i], contents[i]) end
  end
  return answer
end

if not call('ZSCORE', workers, worker) then return { 'unknown', 0 } end
local made, known = numbers_of(worker, tonumber(number), tonumber(ARGV[3]))
if known == 'stale' then return { 'stale', 0 } end
if known == 'made' then return given_again() end

local names = {}
for at = 6, ARGC do names[#names + 1] = ARGV[at] end
local all = names[1] == '*'
local open = open_queues(all and call('HKEYS', queues) or names)
local ids, more = candidates(open, want, all)
if more and #ids < want then answer[2] = 1 end

local next_lines = {}   -- id → member of `held`, of those that a lane would show next

-- unlist(id, state) → something in the line, or among those that a lane shows next, is not a job that waits there; its queue.
local function unlist(id, state)
  answer[2] = 1
  if state == 'ready' then
    drop(ready, lines[id])
    return string.match(lines[id], '^[^\31]*')
  end
  forget_waiter(next_lines[id])
  return string.match(next_lines[id], '^[^\31]*\31([^\31]*)')
end

-- runnable(some, headers, state) → those that can run; what cannot leaves the line. Not more than fits into the answer.
local picked, size, full = 0, 0, false
local function runnable(some, headers, state)
  local found, taken = {}, {}
  for i = 1, #some do
    local id, h = some[i], headers[i]
    if spoilt[id] then
      local queue = unlist(id, state)
      tally(deltas, queue, state, -1)
      quarantine(id, queue)
    elseif not h or h[STATE] ~= state or (state == 'held' and waiting_line(id, h) ~= next_lines[id]) then
      unlist(id, state)
    elseif h[EXPIRES] > 0 and h[EXPIRES] <= now then
      h = read({ id })[1]
      h[REASON] = 'expired'
      move('expire', id, h, 'cancelled', 'expired')
      answer[2] = 1
    elseif picked > 0 and size + h[SIZE] > bytes then
      answer[2], full = 1, true
      break
    else
      found[#found + 1], taken[#taken + 1] = h, id
      picked, size = picked + 1, size + h[SIZE]
    end
  end
  return taken, found
end

-- park(id, at): this lane of the job has no room, so it waits there, and the one that showed it shows another.
local function park(id, at)
  local h = read({ id })[1]
  stored[id] = nil
  wait_under(h, at)
  move('hold', id, h, 'held', lane_name(h[LANES][at]))
end

local halted = halted_in(halted_now)
local first_fence = math.max(tonumber(fence_before or 0), now_us - 1)
local fence = first_fence

-- start(id, h, payload): it runs.
local running_mark = cmsgpack.pack(claim) .. struct.pack('>BI8B', 207, now, 207)
local function start(id, h, payload)
  local packed = stored[id]
  fence = fence + 1
  measure(h[QUEUE], 'wait', h[STATE] == 'ready' and now - h[SINCE] or 0, 1)   -- while it was held it waited for a lane
  if quota[h[QUEUE]] then quota[h[QUEUE]] = quota[h[QUEUE]] - 1 end
  h[CLAIM], h[STARTED] = claim, now
  if packed then
    packed = IS_RUNNING .. running_mark .. struct.pack('>I8', fence) .. packed
  else
    h[FENCE], h[STARTS] = fence, h[STARTS] + 1
  end
  give(id, move('lease', id, h, 'running', nil, packed), payload)
end

-- begin(some, state): starts those of these that can run and have room in all their lanes.
local function begin(some, state)
  local taken, headers = runnable(some, headers_of(some, glimpse), state)
  if #taken == 0 then return end
  meet(headers, #taken)
  local contents = call('HMGET', payloads, unpack(taken))
  for i, id in ipairs(taken) do
    local h = headers[i]
    local blocked = halted[h[TASK]] and halt(id, h[TASK]) or #h[LANES] > 0 and obstacle(h)
    if not contents[i] then
      h = read({ id })[1]
      h[REASON] = 'payload_lost'
      move('bury', id, h, 'dead', 'payload_lost')
      answer[2] = 1
    elseif blocked then
      park(id, blocked)
    else
      start(id, h, contents[i])
    end
  end
end

-- plain_run(some, raw, from) → the kinds of the plain jobs that come next, when they were enqueued, and the position of the
-- last one. Not more than fits into the answer.
local function plain_run(some, raw, from)
  local kinds_of, times, kind = {}, {}, nil
  for i = from, #some do
    local packed = raw[i]
    if not packed or string.byte(packed) ~= 217 then return kinds_of, times, i - 1 end
    if not kind or string.sub(packed, 1, #kind.mark) ~= kind.mark then
      local _, label = cmsgpack.unpack_limit(packed, 1, 0)
      kind = kind_of(label)
      if halted[kind[TASK]] then return kinds_of, times, i - 1 end
    end
    local enqueued, _, bulk = struct.unpack('>I8BI4', packed, #kind.mark + 11)
    if picked > 0 and size + bulk > bytes then return kinds_of, times, i - 1 end
    kinds_of[i], times[i], picked, size = kind, enqueued, picked + 1, size + bulk
  end
  return kinds_of, times, #some
end

-- start_plain(some, raw, from) → the position of the first job that is not a plain one whose payload is there; those before it
-- run.
local records, places, holds = pile(2, 'HSET', jobs), pile(3, 'ZREM', ready), pile(4, 'ZADD', leases)
local function start_plain(some, raw, from)
  local fine, kinds_of, times, to = pcall(plain_run, some, raw, from)
  if not fine or to < from then return from end
  local contents = call('HMGET', payloads, unpack(some, from, to))
  local mark = IS_BEGUN .. running_mark
  for i = from, to do
    local id, kind, payload = some[i], kinds_of[i], contents[i - from + 1]
    if not payload then return i end
    fence = fence + 1
    local packed = mark .. struct.pack('>I8', fence) .. raw[i]
    local a, b, c = records.n, places.n + 1, holds.n
    records[a + 1], records[a + 2], records.n = id, packed, a + 2
    places[b], places.n = lines[id], b
    holds[c + 1], holds[c + 2], holds.n = '0', claim .. SEP .. id, c + 2
    if quota[kind[QUEUE]] then quota[kind[QUEUE]] = quota[kind[QUEUE]] - 1 end
    local waited = now - times[i]
    kind.spans[waited] = (kind.spans[waited] or 0) + 1
    join('lease', kind, id)
    give(id, packed, payload)
  end
  return to + 1
end

-- begin_all(some): starts jobs that are shown in `ready`, in their order: a run of plain ones, then one of others, and so on.
local function begin_all(some)
  local raw, at = #some > 0 and call('HMGET', jobs, unpack(some)), 1
  while at <= #some and not full do
    at = start_plain(some, raw, at)
    local others = {}
    while at <= #some and (#others == 0 or not raw[at] or string.byte(raw[at]) ~= 217) do
      others[#others + 1], at = some[at], at + 1
    end
    begin(others, 'ready')
  end
end

-- next_waiters(n) → up to n jobs of open queues that the lanes touched so far would show now. One that is alone takes no turns.
local function next_waiters(n)
  local found, chosen, turn = {}, {}, #refills > 1 and SHOWN or n
  for _, name in ipairs(refills) do
    local lane = lane_named(name)
    for _, queue in ipairs(open) do
      local most = lane.lines[queue] and math.min(n - #found, (quota[queue] or n) - (chosen[queue] or 0)) or 0
      for _, member in ipairs(most > 0 and next_of(lane, queue, most, turn) or {}) do
        local id = last_part(member)
        if not next_lines[id] then found[#found + 1], chosen[queue] = id, (chosen[queue] or 0) + 1 end
        next_lines[id] = member
      end
    end
  end
  return found
end

-- What a lane would show next comes after those that are shown, so it has to wait while there may be more of these.
begin_all(ids)
while not more and (#answer - 2) / 3 < want and answer[2] == 0 do
  local waiting_ids = next_waiters(want - (#answer - 2) / 3)
  if #waiting_ids == 0 then break end
  begin(waiting_ids, 'held')
end
if fence > first_fence then store(meta, 'fence', fence) end
if (more or cut_short) and next(parked) then answer[2] = 1 end

for _, one in ipairs(kinds) do move_kind(one, 'ready', 'running') end

-- rest(): this worker sleeps until it is woken, if it could have taken more.
local function rest()
  local hungry = #answer - 2 < want * 3 and answer[2] == 0
  for _, name in ipairs(names) do
    if hungry then add(idle, 0, name .. SEP .. worker) else drop(idle, name .. SEP .. worker) end
  end
end

call('HSET', calls, worker, made)
rest()
finish()
return answer
