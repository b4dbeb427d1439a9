-- The end of a script: lanes show their next jobs, everything is written, and those concerned are told.
-- keys: queues

-- rank(h) → its place among the jobs of one lane; the lower is first.
local function rank(h) return string.format('%02d%014d', h[PRIORITY], h[ARRIVAL]) end

-- steps_back(lane, row, h) → has the last of those that are shown made way for this one, which comes before it?
local function steps_back(lane, row, h)
  if lane.kind or #row.shown == 0 or row.worst <= h[PRIORITY] then return false end
  local headers, worst = read(row.shown), nil
  for i, id in ipairs(row.shown) do
    local one = headers[i]
    if one and one[STATE] == 'ready' and (not worst or rank(one) > rank(cache[worst])) then worst = id end
  end
  if not worst or cache[worst][PRIORITY] <= h[PRIORITY] then return false end
  move(nil, worst, cache[worst], 'held')
  return true
end

-- lined(h, i) → is there a line in this lane, at whose end the job has to wait?
local function lined(h, i)
  local lane = lane_of(h[LANES][i])
  local row, own = line_of(lane, h[QUEUE]), h[STATE] == 'running' and 1 or 0
  if row.waiting > 0 then return true end
  return #row.shown >= math.min(SHOWN, lane.limit - lane.use + own, tokens_for(lane))
end

-- place_in_line(h) → the lane in which a job that may run from now on takes its place, and whether it is shown or held there.
local function place_in_line(h)
  local first, blocked = turn_lane(h), obstacle(h)
  local has_turn = h[STATE] == 'running' or h[TURN] > 0
  if first and not has_turn and blocked ~= first and lined(h, first) then return first, 'held' end
  if blocked then
    local lane = lane_of(h[LANES][blocked])
    while steps_back(lane, line_of(lane, h[QUEUE]), h) do end   -- so that this one is the next
    return blocked, 'held'
  end
  for i, spec in ipairs(h[LANES]) do
    if not (i == first and has_turn) and lined(h, i) then
      local lane = lane_of(spec)
      return i, steps_back(lane, line_of(lane, h[QUEUE]), h) and 'ready' or 'held'
    end
  end
  return first or 1, 'ready'
end

-- line_up(verb, id, h, text): a job that may run from now on is shown in `ready`, or held by a lane that has no room.
local function line_up(verb, id, h, text)
  if #h[LANES] == 0 then return move(verb, id, h, 'ready', text) end
  if h[STATE] == '' then announce(h) end
  local at, state = place_in_line(h)
  wait_under(h, at)
  return move(verb, id, h, state, text)
end

-- show(member, verb): a waiter is shown, at the tail of its line so that lanes take turns.
local function show(member, verb)
  local id = string.match(member, '[^\31]*$')
  local h = read({ id })[1]
  if not h or h[STATE] ~= 'held' or waiting_line(id, h) ~= member then return forget_waiter(member) end
  h.tail = true
  move(verb, id, h, 'ready')
  h.tail = nil
end

-- fill(lane, verb): shows its next waiters; a rate opens again later.
local function fill(lane, verb)
  for queue, row in pairs(lane.lines) do
    local members, tokens = next_of(lane, queue, SHOWN)
    while #members > 0 do
      for _, member in ipairs(members) do show(member, verb) end
      members, tokens = next_of(lane, queue, SHOWN)   -- again, should one of them have been no waiter
    end
    if tokens and row.waiting > 0 then
      opens(lane, now + math.max(math.ceil((price(lane, tokens) - lane.tokens) / lane.rate), 5))
    end
  end
end

local function mail(to, text) return call('SPUBLISH', prefix .. to, text) end

-- tell_ended(): those who wait for jobs are told which ones finished, in one letter each.
local function tell_ended()
  if #ended == 0 or call('HLEN', waiting) <= 1 then return end
  local letters = {}
  for i, clients in ipairs(call('HMGET', waiting, unpack(ended))) do
    for client in string.gmatch(clients or '', '[^\31]+') do
      letters[client] = (letters[client] or 'end') .. SEP .. ended[i]
    end
    if clients then call('HDEL', waiting, ended[i]) end
  end
  for client, text in pairs(letters) do mail('to:' .. client, text) end
end

-- wake(queue, n): tells up to n sleeping workers of this queue, or of all, that there is work. Only hints: a worker that
-- did not hear it asks again by itself; one that nobody listens for any more is passed over.
local function wake(queue, n)
  for _, name in ipairs({ queue, '*' }) do
    local asleep = call('ZRANGE', idle, '[' .. name .. SEP, '(' .. name .. AFTER, 'BYLEX', 'LIMIT', 0, n + 8)
    for _, member in ipairs(asleep) do
      if n <= 0 then return end
      call('ZREM', idle, member)
      if mail('to:' .. string.sub(member, #name + 2), 'work') > 0 then n = n - 1 end
    end
  end
end

local function tell()
  if #groups == 0 then return end
  local minute = math.floor(now / 60000) .. SEP
  local entry = {}
  for i, one in ipairs(groups) do
    tally(sums, one[2], one[1], one[7])
    entry[i] = { one[1], one[2], one[3], one[4], one[5], table.concat(one[6], SEP) }
  end
  for queue, row in pairs(sums) do
    for name, sum in pairs(row) do
      if sum > 0 then call('HINCRBY', stats, minute .. queue .. SEP .. name, sum) end
    end
  end
  call('XADD', events, 'MAXLEN', '~', EVENTS, '*', 'e', cmsgpack.pack({ now, entry }))
end

-- finish(): makes all pending writes, then the counts, the event and the wake-ups. The last thing a script does.
local function finish()
  for _, name in ipairs(refills) do fill(lane_named(name)) end
  save_lanes()
  if sequence then call('HSET', meta, 'seq', sequence) end
  write()
  for queue, row in pairs(deltas) do
    for state, change in pairs(row) do
      if change ~= 0 then call('HINCRBY', counts, queue .. SEP .. state, change) end
    end
  end
  tell()
  for key, at in pairs(alarms) do
    if head(key) == at then mail('timer', at) end
  end
  tell_ended()
  if (next(arrivals) or next(ceased)) and call('ZCARD', idle) > 1 then
    for queue, n in pairs(ceased) do
      if string.find(call('HGET', queues, queue) or '', '%d$') then arrivals[queue] = (arrivals[queue] or 0) + n end
    end
    for queue, n in pairs(arrivals) do wake(queue, math.min(n, 8)) end
  end
end
