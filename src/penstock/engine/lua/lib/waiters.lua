-- Who waits in a lane, as this script will leave it: `held`, without those that it takes out and with those that it puts in. What
-- is written comes last, so they are still found there, or not yet. A row is those of one queue in a lane: lane SEP queue SEP.
-- keys: held

local departed = {}   -- member → true of those that left `held`
local away = {}       -- row → how many these are
local row_heads = {}  -- row → the members that were first there, when they were last asked for; `gone` of them have left since
local passed = {}       -- row → the last of those that left from its head, in their order, and are not counted otherwise
local parked = {}     -- row → member → true, of those that were put there

-- joined(member, row_name): it waits there.
local function joined(member, row_name)
  departed[member] = nil
  parked[row_name] = parked[row_name] or {}
  parked[row_name][member] = true
end

-- have_left(members, from, to, row_name), left_held(member, row_name): they are no more to be found there. Mostly they are all that was
-- first there, up to the last of them.
local function have_left(members, from, to, row_name)
  local here, first, n = parked[row_name], row_heads[row_name], to - from + 1
  local gone = first and first.gone or 0
  if first and not here and not away[row_name] and first[gone + 1] == members[from] and first[gone + n] == members[to] then
    passed[row_name], first.gone = members[to], gone + n
    return
  end
  for i = from, to do
    departed[members[i]] = true
    if here then here[members[i]] = nil end
  end
  away[row_name] = (away[row_name] or 0) + n
end
local function left_held(member, row_name) have_left({ member }, 1, 1, row_name) end

-- still_there(members, more) → those of them, and of more, that have not left, in their order.
local function still_there(members, more)
  local found, last = {}, nil
  if more then
    for member in pairs(more) do members[#members + 1] = member end
    table.sort(members)
  end
  for _, member in ipairs(members) do
    if member ~= last and not departed[member] then found[#found + 1] = member end
    last = member
  end
  return found
end

-- first_in(row_name, n) → the members of the first n that wait there, and how many wait if these are all.
local function first_in(row_name, n)
  local most, from = n + (away[row_name] or 0), passed[row_name] and '(' .. passed[row_name] or '[' .. row_name
  local members = call('ZRANGE', held, from, '(' .. string.sub(row_name, 1, -2) .. AFTER, 'BYLEX', 'LIMIT', 0, most)
  local all, found = #members < most, members
  if parked[row_name] or away[row_name] then found = still_there(members, parked[row_name]) end
  local count = all and #found or nil   -- should they ever have been miscounted
  for i = n + 1, #found do found[i] = nil end
  row_heads[row_name] = found
  return found, count
end
