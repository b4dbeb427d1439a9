-- The keys of the namespace that this call is for, by name: keys.jobs, keys.ready, … A verb has those that its contract names.

local M = {}
local last_names, last_first, last_count   -- of the call before: mostly the next one brings the same keys

-- begin(names, given): a call of a verb with these keys begins. It may bring fewer, as for its fast path.
function M.begin(names, given)
  if names == last_names and given[1] == last_first and #given == last_count then return end
  for _, name in ipairs(ALL_KEYS) do M[name] = nil end
  for i = 1, #given do M[names[i]] = given[i] end
  last_names, last_first, last_count = names, given[1], #given
end

-- is_declared(key) → did the call bring it?
function M.is_declared(key)
  for _, name in ipairs(ALL_KEYS) do
    if M[name] == key then return true end
  end
  return false
end

return M
