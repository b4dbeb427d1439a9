-- lease: ready | held → running. Gives a worker the first jobs of its queues; the pair (worker, call) names the attempts.
-- flags: allow-oom
-- keys: payloads workers calls
-- include: header write lanes batches move line finish create ends candidates numbers
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

if not call('ZSCORE', workers, worker) then return { 'unknown', 0 } end
local made, known = numbers_of(worker, tonumber(number), tonumber(ARGV[3]))
if known == 'stale' then return { 'stale', 0 } end
if known == 'made' then
  local before = still_held(claim)
  if #before > 0 then
    local packed, contents = call('HMGET', jobs, unpack(before)), call('HMGET', payloads, unpack(before))
    for i, id in ipairs(before) do give(id, packed[i], contents[i]) end
  end
  return answer
end

local names = {}
for at = 6, ARGC do names[#names + 1] = ARGV[at] end
local all = names[1] == '*'
local open = open_queues(all and call('HKEYS', queues) or names)
local ids, more = candidates(open, want, all)
if more and #ids < want then answer[2] = 1 end

local next_lines = {}   -- id → member of `held`, of those that a lane would show next

-- bare(id, packed) → the first values of a header that nothing was added to, as it is in most cases.
local moved = {}    -- id → true of those that this call has parked: what is stored is not what they are
local function bare(id, packed)
  if moved[id] then return nil end
  if string.sub(packed, 1, 9) == BARE_READY or string.sub(packed, 1, 8) == BARE_HELD then return glance(packed, 0) end
end

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
local picked, size = 0, 0
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
      answer[2] = 1
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
  moved[id], stored[id] = true, nil
  wait_under(h, at)
  move('hold', id, h, 'held', lane_name(h[LANES][at]))
end

-- wrapped(packed) → what is stored of a job that runs, by the fence that was given out last.
local fence
local running_mark = IS_RUNNING .. cmsgpack.pack(claim) .. struct.pack('>BI8B', 207, now, 207)
local function wrapped(packed) return running_mark .. struct.pack('>I8', fence) .. packed end

-- start(id, h, payload): it runs.
local function start(id, h, payload)
  local packed = stored[id]
  tally(sums, h[QUEUE], 'wait', now - h[SINCE])
  fence = fence + 1
  if quota[h[QUEUE]] then quota[h[QUEUE]] = quota[h[QUEUE]] - 1 end
  h[CLAIM], h[STARTED] = claim, now
  if not packed then h[FENCE], h[STARTS] = fence, h[STARTS] + 1 end
  give(id, move('lease', id, h, 'running', nil, packed and wrapped(packed)), payload)
end

-- begin(some, state): starts those of these that can run and have room in all their lanes.
local function begin(some, state)
  local taken, headers = runnable(some, headers_of(some, bare), state)
  if #taken == 0 then return end
  fence = fence or math.max(tonumber(call('HGET', meta, 'fence') or 0), now_us - 1)
  meet(headers, #taken)
  local contents = call('HMGET', payloads, unpack(taken))
  for i, id in ipairs(taken) do
    local h = headers[i]
    local blocked = #h[LANES] > 0 and obstacle(h)
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

-- next_waiters(n) → up to n jobs of open queues that the lanes touched so far would show now.
local function next_waiters(n)
  local found, chosen = {}, {}
  for _, name in ipairs(refills) do
    local lane = lane_named(name)
    for _, queue in ipairs(open) do
      local most = lane.lines[queue] and math.min(n - #found, (quota[queue] or n) - (chosen[queue] or 0)) or 0
      for _, member in ipairs(most > 0 and next_of(lane, queue, most) or {}) do
        local id = string.match(member, '[^\31]*$')
        if not next_lines[id] then found[#found + 1], chosen[queue] = id, (chosen[queue] or 0) + 1 end
        next_lines[id] = member
      end
    end
  end
  return found
end

-- What a lane would show next comes after those that are shown, so it has to wait while there may be more of these.
begin(ids, 'ready')
while not more and (#answer - 2) / 3 < want and answer[2] == 0 do
  local waiting_ids = next_waiters(want - (#answer - 2) / 3)
  if #waiting_ids == 0 then break end
  begin(waiting_ids, 'held')
end
if fence then call('HSET', meta, 'fence', fence) end
if (more or cut_short) and next(parked) then answer[2] = 1 end

call('HSET', calls, worker, made)
local hungry = #answer - 2 < want * 3 and answer[2] == 0
for _, name in ipairs(names) do
  if hungry then add(idle, 0, name .. SEP .. worker) else drop(idle, name .. SEP .. worker) end
end
finish()
return answer
