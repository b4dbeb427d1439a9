-- lease: ready | held → running. Gives a worker the first jobs of its queues; the pair (worker, call) names the attempts.
-- flags: allow-oom
-- keys: payloads workers calls
-- kept: as a function
-- include: record mail lacks label header write waiters lanes owners batches move alike line enter finish create ends own candidates heads numbers halt begin
-- args: worker, call number, highest call number whose answer the worker has, how many at most, how many bytes of
--       payload at most, 1 if it takes a job by letter, the names of its queues in strict order or * for all
-- returns: ok | unknown (register first) | stale (an old call, already answered), 1 if it should ask again at once,
--          then per job: id, header, and its payload unless that is part of the former. A resent call gets what it still holds again, and never anything new.
-- event: lease; hold for candidates that have to wait for a lane, expire and bury for those that can no longer run
local worker, want = ARGV[1], tonumber(ARGV[4])

-- given_again() → what an earlier call gave, as far as it is not settled.
local function given_again()
  local before = still_held(claim)
  if #before > 0 then
    local packed, contents = call('HMGET', jobs, unpack(before)), call('HMGET', payloads, unpack(before))
    for i, id in ipairs(before) do give(id, packed[i], contents[i] or '') end
  end
  return answer
end

if not call('ZSCORE', workers, worker) then return { 'unknown', 0 } end
local made, known = numbers_of(worker, tonumber(ARGV[2]), tonumber(ARGV[3]))
if known == 'stale' then return { 'stale', 0 } end
if known == 'made' then return given_again() end

local names = {}
for at = 7, ARGC do names[#names + 1] = ARGV[at] end
local all = names[1] == '*'
local open = not all and open_queues(names)
local ids, more
if all then ids, more = merged(want) else ids, more = in_order(open, want) end
if more and #ids < want then answer[2] = 1 end

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

-- bury_unreadable(id, state): it waits so, and its header cannot be understood.
local function bury_unreadable(id, state)
  local queue = unlist(id, state)
  tally(deltas, state, queue, -1)
  quarantine(id, queue)
end

-- in_full(id, state) → the header of a job of which the first values were read; nothing if the others cannot be understood.
local function in_full(id, state)
  local h = read({ id })[1]
  if not h then bury_unreadable(id, state) end
  return h
end

-- end_unrun(verb, id, state, outcome, reason): it waits so, and will not run.
local function end_unrun(verb, id, state, outcome, reason)
  local h = in_full(id, state)
  answer[2] = 1
  if not h then return end
  h[REASON] = reason
  move(verb, id, h, outcome, reason)
end

-- runnable(some, headers, state) → those that can run; what cannot leaves the line. Not more than fits into the answer.
local full = false
local function runnable(some, headers, state)
  local found, taken = {}, {}
  for i = 1, #some do
    local id, h = some[i], headers[i]
    if spoilt[id] then
      bury_unreadable(id, state)
    elseif not h or h[STATE] ~= state or (state == 'held' and waiting_line(id, h) ~= next_lines[id]) then
      unlist(id, state)
    elseif h[EXPIRES] > 0 and h[EXPIRES] <= now then
      end_unrun('expire', id, state, 'cancelled', 'expired')
    elseif too_much(h[SIZE]) then
      answer[2], full = 1, true
      break
    else
      found[#found + 1], taken[#taken + 1] = h, id
    end
  end
  return taken, found
end

-- park(id, at, state): this lane of the job has no room, so it waits there, and the one that showed it shows another.
local function park(id, at, state)
  local h = in_full(id, state)
  stored[id] = nil
  if not h then return end
  wait_under(h, at)
  move('hold', id, h, 'held', lane_name(h[LANES][at]))
end

-- start(id, h, payload): it runs.
local function start(id, h, payload)
  local packed = stored[id]
  fence = fence + 1
  measure('wait', h[QUEUE], h[STATE] == 'ready' and now - h[SINCE] or 0, 1)   -- while it was held it waited for a lane
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
    local blocked = halted[h[TASK]] and in_full(id, state) and halt(id, h[TASK]) or #h[LANES] > 0 and obstacle(h)
    local payload = contents[i] or h.payload
    if spoilt[id] then
      answer[2] = 1   -- it is buried
    elseif not payload then
      end_unrun('bury', id, state, 'dead', 'payload_lost')
    elseif blocked then
      park(id, blocked, state)
    else
      start(id, h, payload)
    end
  end
end

-- begin_all(some, state): starts jobs that wait so, in their order: a run of those without a header, then one of others, and so on.
local function begin_all(some, state)
  local raw, at = #some > 0 and call('HMGET', jobs, unpack(some)), 1
  while at <= #some and not full do
    local before, others = at, {}
    if state == 'ready' then at = start_alone(some, raw, start_alone(some, raw, at, false), true) end
    at = start_laned(some, raw, at, state)
    while at == before + #others and at <= #some and (#others == 0 or not raw[at] or string.byte(raw[at]) == 220) do
      others[#others + 1], at = some[at], at + 1
    end
    if #others > 0 then begin(others, state) end
  end
end

-- waiting_rows(n) → a list for each lane touched so far and each open queue that it has jobs of: the members of those that it would
-- show now, until a turn of each makes n; and how long the longest is. Of lanes without any limit so many that together they are n,
-- in whole turns; of others as many as are a turn.
local function waiting_rows(n)
  local rows, longest, left, alone = {}, 0, n, #refills == 1
  local share = AT_ONCE * math.ceil(n / AT_ONCE / math.max(#refills, 1))
  for _, name in ipairs(refills) do
    if left <= 0 then break end
    local lane = lane_named(name)
    local is_free = lane.limit == math.huge and not lane.rate and lane.differs == ''
    local turn = alone and n or is_free and share or AT_ONCE
    for _, queue in ipairs(open or open_queues(queues_of(lane))) do
      if left <= 0 then break end
      local most = lane.lines[queue] and math.min(alone and left or n, quota[queue] or n) or 0
      local members = most > 0 and next_of(lane, queue, most, turn) or {}
      members.queue, members.id_at = queue, #name + #queue + 18   -- behind lane, queue and rank
      rows[#rows + 1], longest = members, math.max(longest, #members)
      left = left - math.min(#members, alone and n or AT_ONCE)
    end
  end
  return rows, longest
end

-- next_waiters(n) → up to n jobs of open queues that the lanes touched so far would show now. One that is alone takes no turns.
local function next_waiters(n)
  local found, count, chosen, from, turn = {}, 0, {}, 1, #refills > 1 and AT_ONCE or n
  local rows, longest = waiting_rows(n)
  while from <= longest and count < n do
    for _, row in ipairs(rows) do
      local queue, at, before = row.queue, row.id_at, count
      local most = math.min(turn, n - count, (quota[queue] or n) - (chosen[queue] or 0))
      for i = from, math.min(from + most - 1, #row) do
        local member = row[i]
        local id = string.sub(member, at)
        if not next_lines[id] then found[count + 1], count = id, count + 1 end
        next_lines[id] = member
      end
      chosen[queue] = (chosen[queue] or 0) + count - before
    end
    from = from + turn
  end
  return found
end

-- What a lane would show next comes after those that are shown, so it has to wait while there may be more of these.
begin_all(ids, 'ready')
while not more and not cut_short and (#answer - 2) / 3 < want and answer[2] == 0 do
  local waiting_ids = next_waiters(want - (#answer - 2) / 3)
  if #waiting_ids == 0 then break end
  begin_all(lacked_here and own_ids(waiting_ids) or waiting_ids, 'held')
end
if fence > first_fence then store(meta, 'fence', fence) end
if (more or cut_short) and next(parked) then answer[2] = 1 end

for _, one in ipairs(kinds) do move_kind(one, 'ready', 'running') end

-- rest(): this worker sleeps until it is woken, if it could have taken more. To one that has nothing at all the next job may
-- come by letter (lib/single.lua).
local function rest()
  local hungry = #answer - 2 < want * 3 and answer[2] == 0
  for _, name in ipairs(names) do
    if hungry then add(idle, 0, name .. SEP .. worker) else drop(idle, name .. SEP .. worker) end
  end
  local free = hungry and #answer == 2 and ARGV[6] == '1' and #held_by(worker, 1) == 0
  if free then add(idle, 0, AT_REST .. worker) else drop(idle, AT_REST .. worker) end
  if hungry and asleep_before ~= '1' then store(meta, 'asleep', '1') end
end

raise_heads(#ids)
call('HSET', calls, worker, made)
rest()
finish()
return answer
