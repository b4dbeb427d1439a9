-- Where lanes come in. Most pages have no job with a lane, so what deals with them is made when the first one is met.

local record = require 'record'
local lane_turns = require 'lane_turns'
local lanes = require 'lanes'
local transition = require 'transition'

local M = {}

-- fetch_lanes(headers, n): reads the lanes of a page of headers in one go.
function M.fetch_lanes(headers, n)
  local names
  for i = 1, n do
    local specs = headers[i] and headers[i][LANES]
    if specs and #specs > 0 then
      names = names or {}
      for _, spec in ipairs(specs) do names[#names + 1] = record.lane_name(spec) end
    end
  end
  if not names then return end
  lanes.fetch(names)
end

-- line_up(verb, id, h, text): a job that may run from now on is shown in `ready`, or held by a lane that has no room.
function M.line_up(verb, id, h, text)
  if #h[LANES] == 0 then return transition.move(verb, id, h, 'ready', text) end
  if h[STATE] == '' then lanes.declare_all(h) end
  local at, state = lane_turns.place_in_line(h)
  lanes.wait_in(h, at)
  return transition.move(verb, id, h, state, text)
end

return M
