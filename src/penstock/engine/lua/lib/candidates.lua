-- Candidates: the jobs that may run next.
-- keys: queues ready

local quota = {}          -- queue with a limit → how many of its jobs may start
local cut_short = false   -- has a limit kept candidates from being looked at?

-- open_queues(names) → those that are not paused and not at their limit.
local function open_queues(names)
  local open, settings = {}, call('HMGET', queues, unpack(names))
  for i, queue in ipairs(names) do
    local setting = settings[i] or ''
    local limit = setting ~= '' and tonumber(string.match(setting, '%d+$'))
    if limit then quota[queue] = limit - (call('HGET', counts, queue .. SEP .. 'running') or 0) end
    local closed = string.find(setting, '^paused') or (quota[queue] and quota[queue] <= 0)
    if queue ~= '' and not closed then open[#open + 1] = queue end
  end
  return open
end

-- look(queue, from, n) → the first n members of this line, from here on, that this worker may take; not more than its limit allows.
local function look(queue, from, n)
  local most = math.min(n, quota[queue] or n)
  local members = lacked_here and own_members(queue, from, most)
    or call('ZRANGE', ready, from, '(' .. queue .. AFTER, 'BYLEX', 'LIMIT', 0, most)
  if most < n and #members == most then cut_short = true end
  return members
end

-- take(ids, member, at): one more candidate; its id begins there in its member of `ready`, which is remembered. A second one is a
-- stray.
local function take(ids, member, at)
  local id = string.sub(member, at)
  if lines[id] then return drop(ready, member) end
  lines[id] = member
  ids[#ids + 1] = id
end

-- step(front): the next member of a line and its rank; more are read when they run out.
local function step(front)
  front.at = front.at + 1
  local member = front.members[front.at]
  if not member and front.at > 1 and #front.members == front.chunk and not quota[front.queue] then
    front.members, front.at = look(front.queue, '(' .. front.members[front.chunk], front.chunk), 1
    member = front.members[1]
  end
  front.rank = member and string.sub(member, #front.queue + 2, #front.queue + 15)
end

-- merged(names, want) → the first of all these lines, by priority and then by arrival, and whether there may be more.
-- It looks at every busy line for every job, so with many of them it gives fewer at a time.
local function merged(names, want)
  local ids, fronts, chunk = {}, {}, math.ceil(want / #names) + 4
  for _, queue in ipairs(names) do
    local front = { queue = queue, at = 0, chunk = chunk, members = look(queue, '[' .. queue .. SEP, chunk) }
    step(front)
    if front.rank then fronts[#fronts + 1] = front end
  end
  local most = math.min(want, math.ceil(5000 / math.max(#fronts, 1)))
  while #ids < most do
    local first
    for _, front in ipairs(fronts) do
      if front.rank and (not first or front.rank < first.rank) then first = front end
    end
    if not first then return ids, false end
    take(ids, first.members[first.at], #first.queue + 17)
    step(first)
  end
  return ids, true
end

-- candidates(names, want) → ids in the order in which they may run, and whether there may be more. Queues that are open are
-- worked off in the order in which they are named; all of them, if that was asked for, as one line.
local function candidates(names, want, all)
  if all and #names > 1 then return merged(names, want) end
  local ids = {}
  for _, queue in ipairs(names) do
    if #ids == want then break end
    local members, at = look(queue, '[' .. queue .. SEP, want - #ids), #queue + 17
    for i = 1, #members do take(ids, members[i], at) end
  end
  return ids, #ids == want
end
