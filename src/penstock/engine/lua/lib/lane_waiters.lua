-- Who waits in a lane, as this script will leave it: `held`, without those that it takes out and with those that it puts in. What
-- is written comes last, so they are still found there, or not yet. A row is those of one queue in a lane: lane SEP queue SEP.

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

local departed, away, row_heads, passed

function M.reset()
  departed = {}   -- member → true of those that left `held`
  away = {}   -- row → how many these are
  row_heads = {}   -- row → the members that were first there, when they were last asked for; `gone` of them have left since
  passed = {}   -- row → the last of those that left from its head, in their order, and are not counted otherwise
  M.added = {}   -- row → member → true, of those that were put there
end

-- joined(member, row_name): it waits there.
function M.joined(member, row_name)
  departed[member] = nil
  M.added[row_name] = M.added[row_name] or {}
  M.added[row_name][member] = true
end

-- have_left(members, from, to, row_name), left(member, row_name): they are no more to be found there. Mostly they are all that was
-- first there, up to the last of them.
function M.have_left(members, from, to, row_name)
  local here, first, n = M.added[row_name], row_heads[row_name], to - from + 1
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

function M.left(member, row_name) M.have_left({ member }, 1, 1, row_name) end

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

-- first(row_name, n) → the members of the first n that wait there, and how many wait if these are all.
function M.first(row_name, n)
  local most, from = n + (away[row_name] or 0), passed[row_name] and '(' .. passed[row_name] or '[' .. row_name
  local members = call('ZRANGE', keys.held, from, '(' .. string.sub(row_name, 1, -2) .. AFTER, 'BYLEX', 'LIMIT', 0, most)
  local all, found = #members < most, members
  if M.added[row_name] or away[row_name] then found = still_there(members, M.added[row_name]) end
  local count = all and #found or nil   -- should they ever have been miscounted
  for i = n + 1, #found do found[i] = nil end
  row_heads[row_name] = found
  return found, count
end

return M
