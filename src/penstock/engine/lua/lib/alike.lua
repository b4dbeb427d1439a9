-- Jobs alike: those with one label differ in nothing that enqueue, lease and complete ask for. These three write the entries of
-- each themselves; what follows from the move of one follows here from that of all.

-- join(verb, kind, id): this one moves, too.
local function join(verb, kind, id)
  local one = kind.group
  if not one then
    one = group_of(verb, kind[QUEUE], kind[TASK], verb == 'enqueue' and 0 or 1, '')
    kind.group = one
  end
  local n = one[7] + 1
  one[6][n], one[7], kind.n = id, n, kind.n + 1
end

-- move_kind(kind, old, state): those of this kind that joined go from one state to another; where that is `ready`, some of them
-- go from or to `held`.
local function move_kind(kind, old, state)
  local queue, n, waited = kind[QUEUE], kind.n, kind.waited
  if n == 0 then return end
  if old ~= '' then tally(deltas, queue, old, waited - n) end
  if waited > 0 then tally(deltas, queue, 'held', old == 'ready' and -waited or waited) end
  if state == 'ready' then
    tally(deltas, queue, state, n - waited)
    if n > waited then arrivals[queue] = (arrivals[queue] or 0) + n - waited end
    return
  end
  tally(deltas, queue, state, n)
  if state == 'running' then
    for ms, times in pairs(kind.spans) do measure(queue, 'wait', ms, times) end
  else
    ceased[queue] = (ceased[queue] or 0) + n
    measure(queue, 'run', now - kind[STARTED], n)
  end
end

-- only_limited(spec, queue) → the lane that this asks for, and its row for that queue. Nothing if the lane has a rate or keeps an
-- order, or if some say so.
local function only_limited(spec, queue)
  local lane = lane_of(spec)
  if lane.rate or lane.kind or lane.differs ~= '' then return nil end
  return lane, line_of(lane, queue)
end
