-- Places in line: where a job that may run takes its place, and which of its waiters a lane shows next.

-- on demand: need_line

-- rank(h) → its place among the jobs of one lane; the lower is first.
local function rank(h) return string.format('%02d%014d', h[PRIORITY], h[ARRIVAL]) end

-- steps_back(lane, row, h) → has the last of those that are shown made way for this one, which comes before it?
local function steps_back(lane, row, h)
  if lane.kind or #row.shown == 0 or row.worst <= h[PRIORITY] then return false end
  local headers, worst = read(row.shown), nil
  for i, id in ipairs(row.shown) do
    local one = headers[i]
    if one and one[STATE] == 'ready' and (not worst or rank(one) > rank(cache[worst])) then worst = id end
  end
  if not worst or cache[worst][PRIORITY] <= h[PRIORITY] then return false end
  move(nil, worst, cache[worst], 'held')
  return true
end

-- lined(h, i) → is there a line in this lane, at whose end the job has to wait?
local function lined(h, i)
  local lane = lane_of(h[LANES][i])
  local row, own = line_of(lane, h[QUEUE]), h[STATE] == 'running' and 1 or 0
  if row.waiting > 0 then return true end
  return #row.shown >= math.min(SHOWN, lane.limit - lane.use + own, tokens_for(lane))
end

-- place_in_line(h) → the lane in which a job that may run from now on takes its place, and whether it is shown or held there.
local function place_in_line(h)
  local first, blocked = turn_lane(h), obstacle(h)
  local has_turn = h[STATE] == 'running' or h[TURN] > 0
  if first and not has_turn and blocked ~= first and lined(h, first) then return first, 'held' end
  if blocked then
    local lane = lane_of(h[LANES][blocked])
    while steps_back(lane, line_of(lane, h[QUEUE]), h) do end   -- so that this one is the next
    return blocked, 'held'
  end
  for i, spec in ipairs(h[LANES]) do
    if not (i == first and has_turn) and lined(h, i) then
      local lane = lane_of(spec)
      return i, steps_back(lane, line_of(lane, h[QUEUE]), h) and 'ready' or 'held'
    end
  end
  return first or 1, 'ready'
end

-- show(member, h, verb): a waiter is shown, at the tail of its line so that lanes take turns.
local function show(member, h, verb)
  local id = last_part(member)
  if not h or h[STATE] ~= 'held' or waiting_line(id, h) ~= member then return forget_waiter(member) end
  h.tail, h.bare = true, stored[id]
  move(verb, id, h, 'ready')
  h.tail = nil
end

-- next_ones(names) → the members of those that these lanes show next, and their headers; a rate opens again later.
local function next_ones(names)
  local found, ids = {}, {}
  for _, name in ipairs(names) do
    local lane = lane_named(name)
    for queue, row in pairs(lane.lines) do
      local members, tokens = next_of(lane, queue, SHOWN, SHOWN)
      for _, member in ipairs(members) do
        found[#found + 1], ids[#ids + 1] = member, last_part(member)
      end
      if tokens and row.waiting > 0 then
        opens(lane, now + math.max(math.ceil((price(lane, tokens) - lane.tokens) / lane.rate), 5))
      end
    end
  end
  return found, headers_of(ids, glimpse)
end

-- fill(names, verb): these lanes show their next waiters. Again and again, should one of them have been no waiter.
local function fill(names, verb)
  local members, headers = next_ones(names)
  while #members > 0 do
    for i, member in ipairs(members) do show(member, headers[i], verb) end
    members, headers = next_ones(names)
  end
end
