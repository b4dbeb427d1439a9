-- At the end of a call, what changed of lanes is stored.

local keys = require 'keys'
local lanes = require 'lanes'
local locks = require 'locks'
local writes = require 'writes'

local M = {}

-- save_texts(): stores the locks that were dealt with as text.
local function save_texts()
  local records = writes.command(4, 'HSET', keys.lanes)
  local n = records.n
  for name, text in pairs(lanes.texts) do
    if text then
      n = n + 2
      records[n - 1] = name
      records[n] = text
    else
      writes.delete(keys.lanes, name)
    end
  end
  records.n = n
end

-- save_lane(name, lane): stores a lane, or removes it if it is not in use.
local function save_lane(name, lane)
  local packed = locks.hands_over and locks.handed_over(lane) or lanes.encode(lane)
  if lane.unlisted then writes.add(keys.holders, '0', name .. SEP .. lane.unlisted) end
  if packed and packed ~= lane.stored then writes.put(4, 'HSET', keys.lanes, name, packed) end
  if not packed and lane.stored then
    writes.delete(keys.lanes, name)
    if lane.rate or lane.had_rate then writes.remove_later(keys.openings, name) end
  end
end

-- save_lanes(): stores what changed.
function M.save_lanes()
  save_texts()
  for name, lane in pairs(lanes.decoded) do
    if lane.rest or lane.changed then save_lane(name, lane) end
  end
end

return M
