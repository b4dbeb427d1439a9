-- Room: a queue may be told how many jobs may wait in it.
-- keys: counts ready

-- ready_in(queue) → how many are in line: the only state that is not counted, for the line itself tells.
local function ready_in(queue) return call('ZLEXCOUNT', ready, '[' .. queue .. SEP, '(' .. queue .. AFTER) end

-- room_in(queue, setting) → how many more it takes, where this is set for it.
local function room_in(queue, setting)
  local left = setting and setting ~= '' and tonumber(string.match(setting, 'max=(%d+)%.'))
  if not left then return math.huge end
  local at = queue .. SEP
  local waiting_now = call('HMGET', counts, at .. 'scheduled', at .. 'held')
  return left - ready_in(queue) - (waiting_now[1] or 0) - (waiting_now[2] or 0)
end
