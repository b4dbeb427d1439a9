-- Jobs alike: those with one label differ in nothing that enqueue, lease and complete ask for. These three write the entries of
-- each themselves; what follows from the move of one follows here from that of all.

-- event_of(verb, kind) → the lines of this call's event that say so of jobs of this kind: see group_of.
local function event_of(verb, kind)
  local one = kind.group
  if not one then
    one = group_of(verb, kind[QUEUE], kind[TASK], verb == 'enqueue' and 0 or 1, '')
    kind.group = one
  end
  return one
end

-- move_kind(kind, old, state): the n of this kind go from one state to another; where that is `ready`, some of them
-- go from or to `held`.
local function move_kind(kind, old, state)
  local queue, n, waited = kind[QUEUE], kind.n, kind.waited
  if n == 0 then return end
  if old == 'running' then tally(deltas, old, queue, waited - n) end
  if waited > 0 then tally(deltas, 'held', queue, old == 'ready' and -waited or waited) end
  if state == 'ready' then
    if n > waited then arrivals[queue] = (arrivals[queue] or 0) + n - waited end
    return
  end
  tally(deltas, state, queue, n)
  if state == 'running' then
    measure('wait', queue, 0, waited)   -- while they were held they waited for a lane
  else
    ceased[queue] = (ceased[queue] or 0) + n
    measure('run', queue, now - kind[STARTED], n)
  end
end

-- only_limited(spec, queue) → the lane that this asks for, and its row for that queue. Nothing if the lane has a rate or keeps an
-- order, or if some say so.
local function only_limited(spec, queue)
  local lane = lane_of(spec)
  if lane.rate or lane.kind or lane.differs ~= '' then return nil end
  return lane, line_of(lane, queue)
end
