-- Halted tasks: a job of one is held in a lane of its task, which allows none until the task goes on.

-- halted_in(text) → task → true, of those that are named there.
local function halted_in(text)
  local found = {}
  for task in string.gmatch(text or '', '[^\31]+') do found[task] = true end
  return found
end

-- halt(id, task) → the place among its lanes of the one that this job has to wait in; it may be added to them.
local function halt(id, task)
  need_lanes()
  need_line()
  local h, spec, at = read({ id })[1], 'task:' .. task .. string.rep(SEP, 5) .. '1', nil
  if lane_of(spec).limit > 0 then return nil end
  for i, one in ipairs(h[LANES]) do
    if lane_name(one) == lane_name(spec) then at = i end
  end
  if not at then
    at = #h[LANES] + 1
    h[LANES] = { unpack(h[LANES]) }   -- those of one kind may share the former
    h[LANES][at] = spec
    if at == 1 then h[HOME] = 1 end
  end
  return at
end
