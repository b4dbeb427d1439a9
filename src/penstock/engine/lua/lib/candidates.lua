-- Candidates: the jobs that may run next.
-- keys: queues counts ready

-- open_queues(names) → those that are not paused.
local function open_queues(names)
  local open, settings = {}, call('HMGET', queues, unpack(names))
  for i, queue in ipairs(names) do
    if queue ~= '' and settings[i] ~= 'paused' then open[#open + 1] = queue end
  end
  return open
end

-- busy_queues(names) → those that have ready jobs.
local function busy_queues(names)
  local busy, fields = {}, {}
  for i, queue in ipairs(names) do fields[i] = queue .. SEP .. 'ready' end
  for i, n in ipairs(call('HMGET', counts, unpack(fields))) do
    if n and n ~= '0' then busy[#busy + 1] = names[i] end
  end
  return busy
end

-- look(ids, queue, n): adds the first n of this line, and remembers their members in `lines`.
local function look(ids, queue, n)
  local members = call('ZRANGE', ready, '[' .. queue .. SEP, '(' .. queue .. AFTER, 'BYLEX', 'LIMIT', 0, n)
  local from, have = #queue + 19, #ids
  for i = 1, #members do
    local id = string.sub(members[i], from)
    lines[id] = members[i]
    ids[have + i] = id
  end
end

-- merge(ids): by priority and then by arrival, whatever the queue.
local function merge(ids)
  local ranks = {}
  for _, id in ipairs(ids) do ranks[id] = string.sub(lines[id], -17 - #id, -2 - #id) end
  table.sort(ids, function(a, b) return ranks[a] < ranks[b] end)
end

-- candidates(names, want) → ids in the order in which they may run. Queues that are named are worked off in that order;
-- all of them (*) as one line.
local function candidates(names, want)
  local ids = {}
  if names[1] ~= '*' then
    for _, queue in ipairs(open_queues(names)) do
      if #ids < want then look(ids, queue, want - #ids) end
    end
    return ids
  end
  local busy = open_queues(call('HKEYS', queues))
  if #busy > 1 then busy = busy_queues(busy) end
  for _, queue in ipairs(busy) do look(ids, queue, math.min(want, math.ceil(1000 / #busy))) end
  if #busy > 1 then merge(ids) end
  for i = #ids, want + 1, -1 do ids[i] = nil end
  return ids
end
