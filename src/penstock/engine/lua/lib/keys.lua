-- The keys of the namespace that a call is for, by name: keys.jobs, keys.ready and so on. A call has those that its
-- verb declares in its contract; engine/keys.py says what each of them holds.

local M = {}

-- The keys of the previous call. The next call mostly brings the same ones.
local previous_names, previous_first, previous_count

-- begin(names, given_keys): a call begins and brings these keys, in the order of these names. It may bring fewer keys
-- than there are names: enqueue's fast path needs only the first ones.
function M.begin(names, given_keys)
  if names == previous_names and given_keys[1] == previous_first and #given_keys == previous_count then return end
  for _, name in ipairs(ALL_KEYS) do M[name] = nil end
  for i = 1, #given_keys do M[names[i]] = given_keys[i] end
  previous_names, previous_first, previous_count = names, given_keys[1], #given_keys
end

-- is_declared(key) → did the call bring this key?
function M.is_declared(key)
  for _, name in ipairs(ALL_KEYS) do
    if M[name] == key then return true end
  end
  return false
end

return M
