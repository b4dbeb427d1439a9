-- Jobs alike: those with one label differ in nothing that enqueue, lease and complete ask for. These three write the entries of
-- each themselves; what follows from the move of one follows here from that of all.

local request = require 'request'
local counters = require 'counters'
local lanes = require 'lanes'
local transition = require 'transition'

local M = {}

-- event_of(verb, kind) → the lines of this call's event that say so of jobs of this kind: see group_of.
function M.event_of(verb, kind)
  local one = kind.group
  if not one then
    one = transition.event_group(verb, kind[QUEUE], kind[TASK], verb == 'enqueue' and 0 or 1, '')
    kind.group = one
  end
  return one
end

-- move_kind(kind, old, state): the n of this kind go from one state to another; where that is `ready`, some of them
-- go from or to `held`.
function M.move_kind(kind, old, state)
  local queue, n, waited = kind[QUEUE], kind.n, kind.waited
  if n == 0 then return end
  if old == 'running' then counters.add_to(counters.count_changes, old, queue, waited - n) end
  if waited > 0 then counters.add_to(counters.count_changes, 'held', queue, old == 'ready' and -waited or waited) end
  if state == 'ready' then
    if n > waited then counters.became_ready[queue] = (counters.became_ready[queue] or 0) + n - waited end
    return
  end
  counters.add_to(counters.count_changes, state, queue, n)
  if state == 'running' then
    counters.measure('wait', queue, 0, waited)   -- while they were held they waited for a lane
  else
    counters.stopped_running[queue] = (counters.stopped_running[queue] or 0) + n
    counters.measure('run', queue, request.now - kind[STARTED], n)
  end
end

-- limited_lane(spec, queue) → the lane that this asks for, and its row for that queue. Nothing if the lane has a rate or keeps an
-- order, or if some say so.
function M.limited_lane(spec, queue)
  local lane = lanes.of(spec)
  if lane.rate or lane.kind or lane.differs ~= '' then return nil end
  return lane, lanes.row(lane, queue)
end

return M
