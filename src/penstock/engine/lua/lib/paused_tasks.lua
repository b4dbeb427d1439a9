-- Paused tasks: while a task is paused, a lane of its own, task:NAME, has no slots. Lease holds its jobs in that lane.

local record = require 'record'
local jobs = require 'jobs'
local lanes = require 'lanes'

local M = {}

-- parse(text) → task → true, of the tasks that `meta` names as paused.
function M.parse(text)
  local paused = {}
  for task in string.gmatch(text or '', '[^\31]+') do paused[task] = true end
  return paused
end

-- position_of(name, specs) → the position of the lane with this name, or nothing.
local function position_of(name, specs)
  for i, spec in ipairs(specs) do
    if record.lane_name(spec) == name then return i end
  end
end

-- lane_of(id, task) → the position, among the job's lanes, of the lane of its task, which is added if it is missing;
-- nothing if the task is not paused any more.
function M.lane_of(id, task)
  local h = jobs.read({ id })[1]
  local name = 'task:' .. task
  local spec = name .. string.rep(SEP, 5) .. '1'   -- no limit, rate, burst or kind; it costs one token
  if lanes.of(spec).limit > 0 then return nil end
  local specs = h[LANES]
  local at = position_of(name, specs)
  if not at then
    h[LANES] = { unpack(specs) }   -- jobs of one kind may share the list
    at = #specs + 1
    h[LANES][at] = spec
    if at == 1 then h[HOME] = 1 end
  end
  return at
end

return M
