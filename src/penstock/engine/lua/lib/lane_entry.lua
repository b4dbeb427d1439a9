-- What most verbs need of lanes: to read the lanes of a page of jobs, and to put a job that may run into its place.
-- `h` is the header of a job.

local record = require 'record'
local lane_turns = require 'lane_turns'
local lanes = require 'lanes'
local transition = require 'transition'

local M = {}

-- fetch_lanes(headers, n): reads the lanes of n jobs in one go. Where a job is missing, its header is nil.
function M.fetch_lanes(headers, n)
  local names
  for i = 1, n do
    local specs = headers[i] and headers[i][LANES]
    if specs and #specs > 0 then
      names = names or {}
      for _, spec in ipairs(specs) do names[#names + 1] = record.lane_name(spec) end
    end
  end
  if names then lanes.fetch(names) end
end

-- line_up(verb, id, h, text) → the stored record. A job that may run from now on becomes ready, or is held by a
-- lane that has no room. The event says `verb` and `text`.
function M.line_up(verb, id, h, text)
  if #h[LANES] == 0 then return transition.move(verb, id, h, 'ready', text) end
  if h[STATE] == '' then lanes.declare_all(h) end
  local at, state = lane_turns.place_in_line(h)
  lanes.wait_in(h, at)
  return transition.move(verb, id, h, state, text)
end

return M
