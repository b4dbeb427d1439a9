-- The jobs that a lane holds, as they will be after this call: the members of `held`, without those that the call
-- removes and with those that it adds. A call writes only at its end, so `held` itself does not show these changes yet.
-- A row has the members of one lane and queue. Its name is how they begin: lane SEP queue SEP.

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

local departed, n_departed, row_heads, passed

function M.reset()
  departed = {}     -- member → true, if it left
  n_departed = {}   -- row → how many of its members are in `departed`
  row_heads = {}    -- row → its first members, as last read; the first `gone` of them have left since
  passed = {}       -- row → the last member that left from its head; those up to it are not in `departed`
  M.added = {}      -- row → member → true, if this call added it
end

-- joined(member, row_name): it waits there from now on.
function M.joined(member, row_name)
  departed[member] = nil
  M.added[row_name] = M.added[row_name] or {}
  M.added[row_name][member] = true
end

-- have_left(members, from, to, row_name): the members at these positions wait there no more. Mostly they are the next
-- ones of the row's head: then it is enough to know the last one, and to read on behind it.
function M.have_left(members, from, to, row_name)
  local added, head, n = M.added[row_name], row_heads[row_name], to - from + 1
  local gone = head and head.gone or 0
  local is_head = head and head[gone + 1] == members[from] and head[gone + n] == members[to]
  if is_head and not added and not n_departed[row_name] then
    passed[row_name], head.gone = members[to], gone + n
    return
  end
  for i = from, to do
    departed[members[i]] = true
    if added then added[members[i]] = nil end
  end
  n_departed[row_name] = (n_departed[row_name] or 0) + n
end

-- left(member, row_name): it waits there no more.
function M.left(member, row_name) M.have_left({ member }, 1, 1, row_name) end

-- merged(members, added) → the members that have not left, with those that were added, in order.
local function merged(members, added)
  local present, previous = {}, nil
  if added then
    for member in pairs(added) do members[#members + 1] = member end
    table.sort(members)
  end
  for _, member in ipairs(members) do
    if member ~= previous and not departed[member] then present[#present + 1] = member end
    previous = member
  end
  return present
end

-- first(row_name, n) → the first n members of this row. If these are all, it also returns how many there are, which
-- corrects the count that the lane keeps.
function M.first(row_name, n)
  local most = n + (n_departed[row_name] or 0)
  local from = passed[row_name] and '(' .. passed[row_name] or '[' .. row_name
  local to = '(' .. string.sub(row_name, 1, -2) .. AFTER
  local members = call('ZRANGE', keys.held, from, to, 'BYLEX', 'LIMIT', 0, most)
  local is_all, added = #members < most, M.added[row_name]
  if added or n_departed[row_name] then members = merged(members, added) end
  local count = is_all and #members or nil
  for i = n + 1, #members do members[i] = nil end
  row_heads[row_name] = members
  return members, count
end

return M
