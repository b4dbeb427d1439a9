-- Halted tasks: a job of one is held in a lane of its task, which allows none until the task goes on.

local record = require 'record'
local jobs = require 'jobs'
local lanes = require 'lanes'

local M = {}

-- parse(text) → task → true, of those that are named there.
function M.parse(text)
  local found = {}
  for task in string.gmatch(text or '', '[^\31]+') do found[task] = true end
  return found
end

-- lane_of(id, task) → the place among its lanes of the one that this job has to wait in; it may be added to them.
function M.lane_of(id, task)
  local h, spec, at = jobs.read({ id })[1], 'task:' .. task .. string.rep(SEP, 5) .. '1', nil
  if lanes.of(spec).limit > 0 then return nil end
  for i, one in ipairs(h[LANES]) do
    if record.lane_name(one) == record.lane_name(spec) then at = i end
  end
  if not at then
    at = #h[LANES] + 1
    h[LANES] = { unpack(h[LANES]) }   -- those of one kind may share the former
    h[LANES][at] = spec
    if at == 1 then h[HOME] = 1 end
  end
  return at
end

return M
