-- Mending lanes: who holds and who waits is in the headers, `holders` and `held` follow from these, and the numbers in
-- `lanes` from those. What a rate had left is lost with a lane's record.

-- holds(h, i) → has this job a slot of that lane?
local function holds(h, i)
  return h[STATE] == 'running' or (h[TURN] == i and (waits(h) or h[STATE] == 'dead'))
end

-- is_holder(member) → does it name a job, and a lane that this job has a slot of?
local function is_holder(member, id, h)
  for i, spec in ipairs(h and h[LANES] or {}) do
    if holds(h, i) and lane_name(spec) .. SEP .. id == member then return true end
  end
end

-- has(list, one) → is it in there?
local function has(list, one)
  for _, other in ipairs(list) do
    if other == one then return true end
  end
end

-- introduce(id, h) → how many lanes had not heard of a job that holds or waits in them, as far as they can tell. How many there
-- are is counted afterwards, once each lane that should have a record has one.
local function introduce(id, h)
  local strange = 0
  for i, spec in ipairs(h[LANES]) do
    local home = i == h[HOME] and (h[STATE] == 'ready' or h[STATE] == 'held')
    local lane = (home or holds(h, i)) and lane_of(spec)
    local row = home and line_of(lane, h[QUEUE])
    if holds(h, i) and lane.use < 1 then lane.use, strange = 1, strange + 1 end
    if row and h[STATE] == 'held' and row.waiting < 1 then row.waiting, strange = 1, strange + 1 end
    if row and h[STATE] == 'ready' and not has(row.shown, id) then
      row.shown[#row.shown + 1], row.worst, strange = id, math.max(row.worst, h[PRIORITY]), strange + 1
    end
  end
  return strange
end

-- count_waiting(lane): of each queue that has any in `held`.
local function count_waiting(lane)
  local from = '[' .. lane.name .. SEP
  for _, row in pairs(lane.lines) do row.waiting = 0 end
  while true do
    local member = call('ZRANGE', held, from, '(' .. lane.name .. AFTER, 'BYLEX', 'LIMIT', 0, 1)[1]
    if not member then return end
    local line_name = lane.name .. SEP .. string.match(member, '^[^\31]*\31([^\31]*)')
    local row = line_of(lane, string.sub(line_name, #lane.name + 2))
    row.waiting = call('ZLEXCOUNT', held, '[' .. line_name .. SEP, '(' .. line_name .. AFTER)
    from = '[' .. line_name .. AFTER
  end
end

-- check_shown(lane): only jobs that are in `ready` under this lane, and not better than the worst of them.
local function check_shown(lane)
  for queue, row in pairs(lane.lines) do
    local shown, worst, headers = {}, 0, read(row.shown)
    for i, id in ipairs(row.shown) do
      local h = headers[i]
      local here = h and h[STATE] == 'ready' and h[QUEUE] == queue and lane_name(h[LANES][h[HOME]] or '') == lane.name
      if here and not has(shown, id) then
        shown[#shown + 1], worst = id, math.max(worst, h[PRIORITY])
      end
    end
    row.shown, row.worst = shown, math.max(worst, #shown > 0 and row.worst or 0)
  end
end

-- recounted(name) → was what is stored of a lane wrong? It shows its next waiters if it has room.
local function recounted(name)
  local lane = lane_named(name)
  local before = packed_lane(lane)
  lane.use = call('ZLEXCOUNT', holders, '[' .. name .. SEP, '(' .. name .. AFTER)
  count_waiting(lane)
  check_shown(lane)
  refill(lane)
  local after = packed_lane(lane)
  return before ~= after or (after == nil and not lane.had_rate)   -- one with a rate is merely forgotten when it is full
end
