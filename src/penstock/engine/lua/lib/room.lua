-- Room: a queue may be told how many jobs may wait in it.
-- keys: queues

local rooms = {}   -- queue → how many more it takes

-- has_room(queue) → does it take one more job? Those that it says so of are counted.
local function has_room(queue)
  local left = rooms[queue]
  if not left then
    local setting = call('HGET', queues, queue)
    found_queues[queue] = setting
    left = setting and setting ~= '' and tonumber(string.match(setting, 'max=(%d+)%.')) or math.huge
    if left < math.huge then
      local at = queue .. SEP
      local waiting_now = call('HMGET', counts, at .. 'ready', at .. 'scheduled', at .. 'held')
      for i = 1, 3 do left = left - (waiting_now[i] or 0) end
    end
  end
  rooms[queue] = left - 1
  return left > 0
end

-- return_room(queue): the last one that it said so of is counted once more.
local function return_room(queue) rooms[queue] = rooms[queue] + 1 end
