-- Candidates: the jobs that may run next.
-- keys: queues ready heads

local SOME = 500          -- values that one command is given
local quota = {}          -- queue with a limit → how many of its jobs may start
local cut_short = false   -- has a limit kept candidates from being looked at?
local may_lease_from = {}        -- queue → is it neither paused nor at its limit? Of those that were looked up.

-- look_up(names, from): reads what is set for these queues, from this one on, if anything ever was for any.
local function look_up(names, from)
  for first = from, #names, SOME do
    local last = math.min(first + SOME - 1, #names)
    local settings = settings_before and call('HMGET', queues, unpack(names, first, last)) or {}
    for i = first, last do
      local queue, setting = names[i], settings[i - first + 1] or ''
      local limit = setting ~= '' and tonumber(string.match(setting, '%d+$'))
      if limit then quota[queue] = limit - (call('HGET', counts, queue .. SEP .. 'running') or 0) end
      may_lease_from[queue] = queue ~= '' and not string.find(setting, '^paused') and not (limit and quota[queue] <= 0)
    end
  end
end

-- open_queues(names) → those of them that may be leased from.
local function open_queues(names)
  local unknown, open = {}, {}
  for _, queue in ipairs(names) do
    if may_lease_from[queue] == nil then unknown[#unknown + 1] = queue end
  end
  look_up(unknown, 1)
  for _, queue in ipairs(names) do
    if may_lease_from[queue] then open[#open + 1] = queue end
  end
  return open
end

-- look(queue, from, n) → the first n members of this line, from here on, that this worker may take, and whether these are all; not more
-- than its limit allows.
local function look(queue, from, n)
  local most = math.min(n, quota[queue] or n)
  local members = lacked_here and own_members(queue, from, most)
    or call('ZRANGE', ready, from, '(' .. queue .. AFTER, 'BYLEX', 'LIMIT', '0', most)
  if most < n and #members == most then cut_short = true end
  return members, #members < most
end

-- take(ids, member, at): one more candidate; its id begins there in its member of `ready`, which is remembered. A second one is a
-- stray.
local function take(ids, member, at)
  local id = string.sub(member, at)
  if lines[id] then return withdraw(ready, member) end   -- not one of those that lease counts: see raise_heads
  lines[id] = member
  ids[#ids + 1] = id
end

-- in_order(names, want) → the first jobs of these queues, one queue after the other, and whether there may be more.
local function in_order(names, want)
  local ids = {}
  for _, queue in ipairs(names) do
    if #ids == want then break end
    local members, at = look(queue, '[' .. queue .. SEP, want - #ids), #queue + 17
    for i = 1, #members do take(ids, members[i], at) end
  end
  return ids, #ids == want
end
