-- lease: ready | held → running. Gives a worker the first jobs of its queues; the pair (worker, call) names the attempts.
-- flags: allow-oom
-- keys: payloads workers calls
-- kept: as a function
-- include: record mail lacks header write waiters lanes owners batches move alike line enter finish create ends own candidates heads numbers halt begin start
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

-- begin_all(some, state): starts jobs that wait so, in their order: a run of those without a header, then one of others, and so on.
local function begin_all(some, state)
  local raw, at = #some > 0 and call('HMGET', jobs, unpack(some)), 1
  while at <= #some and not full do
    local before, others = at, {}
    if state == 'ready' then at = start_alone(some, raw, start_alone(some, raw, at, false), true) end
    at = start_laned(some, raw, at, state)
    while at == before + #others and at <= #some and (#others == 0 or not raw[at] or says_rare(raw[at])) do
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
-- come by letter (lib/push.lua).
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
