-- Grouped moves: enqueue, lease and complete move many jobs of one kind at once. They write the entries of each job
-- themselves; here is what follows once for all of them: counts, durations and the lines of the event.

local request = require 'request'
local counters = require 'counters'
local lanes = require 'lanes'
local transition = require 'transition'

local M = {}

-- event_of(verb, kind) → the group of this call's event that has the jobs of this kind: see transition.event_group().
function M.event_of(verb, kind)
  local group = kind.group
  if not group then
    group = transition.event_group(verb, kind[QUEUE], kind[TASK], verb == 'enqueue' and 0 or 1, '')
    kind.group = group
  end
  return group
end

-- move_kind(kind, old, state): the n jobs of this kind went from one state to another. Where that is ready, `waited` of
-- them were held, or are held from now on.
function M.move_kind(kind, old, state)
  local queue, n, waited = kind[QUEUE], kind.n, kind.waited
  if n == 0 then return end
  local count_changes, became_ready = counters.count_changes, counters.became_ready
  if old == 'running' then counters.add_to(count_changes, old, queue, waited - n) end
  if waited > 0 then counters.add_to(count_changes, 'held', queue, old == 'ready' and -waited or waited) end
  if state == 'ready' then
    if n > waited then became_ready[queue] = (became_ready[queue] or 0) + n - waited end
    return
  end
  counters.add_to(count_changes, state, queue, n)
  if state == 'running' then
    counters.measure('wait', queue, 0, waited)   -- while they were held they waited for a lane
  else
    counters.stopped_running[queue] = (counters.stopped_running[queue] or 0) + n
    counters.measure('run', queue, request.now - kind[STARTED], n)
  end
end

-- limited_lane(spec, queue) → the lane that the spec names, and its row for that queue. Nothing if the lane has a
-- rate or an order, or jobs differ in what they say of it.
function M.limited_lane(spec, queue)
  local lane = lanes.of(spec)
  if lane.rate or lane.kind or lane.differs ~= '' then return nil end
  return lane, lanes.row(lane, queue)
end

return M
