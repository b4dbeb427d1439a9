-- Lanes: locks, limits, order and rates. A job asks for any number of them and runs when all have room; only running jobs
-- hold slots (and, of an ordered lane, the job whose turn it is). A lane shows a few of its jobs in `ready`, as many as
-- could start; the others wait in `held`, under the lane that stopped them, and take no part in anything until it has room.
-- keys: lanes limits holders openings

local SHOWN = 8     -- candidates that one lane shows of one queue at once, so that lanes take turns
local known_lanes = {}    -- name → lane, as read and as it will be stored
local refills = {}  -- names of lanes whose next waiters may be shown; also by name
local departed = {}     -- id → true of those that left `held` in this script: they are still found there
local away = 0      -- how many these are
local parked = {}   -- lane SEP queue SEP → member → true, of those that this script put into `held`

local function unpacked(raw)
  local fine, found = pcall(cmsgpack.unpack, raw or '')
  return fine and type(found) == 'table' and found or {}
end

-- lane_from(name, raw, by_hand) → a lane from what is stored of it: { in use, tokens, as of, declared, differs, then per queue: name,
-- how many wait, worst priority shown, ids that are shown }; and what was set by hand: { limit or -1, 1 if paused }.
local function lane_from(name, raw, by_hand)
  local found, fixed, lines_of = unpacked(raw), unpacked(by_hand), {}
  for i = 6, #found, 4 do
    local shown = {}
    for id in string.gmatch(found[i + 3], '[^\31]+') do shown[#shown + 1] = id end
    lines_of[found[i]] = { waiting = found[i + 1], worst = found[i + 2], shown = shown }
  end
  return {
    name = name, stored = raw, use = found[1] or 0, tokens = found[2], at = found[3] or now, declared = found[4] or '',
    differs = found[5] or '', lines = lines_of, limit = math.huge, set = fixed[1] or -1, paused = fixed[2] == 1,
  }
end

-- line_of(lane, queue) → the jobs of one queue in a lane: how many wait, which are shown.
local function line_of(lane, queue)
  local found = lane.lines[queue]
  if not found then
    found = { waiting = 0, worst = 0, shown = {} }
    lane.lines[queue] = found
  end
  return found
end

-- declare(lane, rest): what a job says of a lane: limit, rate per ms, burst, kind, cost. The latest word counts; one that
-- differs is kept for people to see.
local function declare(lane, rest)
  if lane.rest == rest then return end
  lane.rest = rest
  if rest == '' then
    lane.limit = 1
  else
    local limit, rate, burst, kind = string.match(rest, '^([^\31]*)\31([^\31]*)\31([^\31]*)\31([^\31]*)')
    local word = limit .. SEP .. rate .. SEP .. burst .. SEP .. kind
    if lane.declared ~= '' and lane.declared ~= word then lane.differs = lane.declared end
    lane.declared = word
    lane.limit, lane.rate, lane.burst, lane.kind = tonumber(limit) or math.huge, tonumber(rate), tonumber(burst) or 1, kind
  end
  if lane.set >= 0 then lane.limit = lane.set end
  if lane.paused then lane.limit = 0 end
  if lane.rate then
    if not lane.stored and not lane.tokens then lane.tokens = lane.burst end
    lane.tokens = math.min(lane.burst, (lane.tokens or lane.burst) + math.max(now - lane.at, 0) * lane.rate)
    lane.at = now
  end
end

-- fetch(names): reads lanes that are not known yet, in one go.
local function fetch(names)
  local unknown = {}
  for _, name in ipairs(names) do
    if not known_lanes[name] then
      known_lanes[name] = true
      unknown[#unknown + 1] = name
    end
  end
  if #unknown == 0 then return end
  local raw, by_hand = call('HMGET', lanes, unpack(unknown)), call('HMGET', limits, unpack(unknown))
  for i, name in ipairs(unknown) do known_lanes[name] = lane_from(name, raw[i], by_hand[i]) end
end

-- meet(headers, n): reads the lanes of a page of headers in one go.
local function meet(headers, n)
  local names = {}
  for i = 1, n do
    for _, spec in ipairs(headers[i] and headers[i][LANES] or {}) do names[#names + 1] = lane_name(spec) end
  end
  fetch(names)
end

-- lane_of(spec) → the lane, with what this job says of it.
local function lane_of(spec)
  local name = lane_name(spec)
  if not known_lanes[name] then fetch({ name }) end
  declare(known_lanes[name], string.sub(spec, #name + 2))
  return known_lanes[name]
end

-- lane_named(name) → the lane, with what was last said of it.
local function lane_named(name)
  if not known_lanes[name] then fetch({ name }) end
  local lane = known_lanes[name]
  if not lane.rest then declare(lane, lane.declared ~= '' and lane.declared .. SEP .. '1' or '') end
  return lane
end

local function cost_of(spec) return tonumber(string.match(spec, '\31([^\31]*)$')) or 1 end

-- refill(lane): at the end of the script its next waiters are shown, if it has room.
local function refill(lane)
  if not refills[lane.name] then
    refills[lane.name] = true
    refills[#refills + 1] = lane.name
  end
end

-- room(lane, cost) → how many more may start now.
local function room(lane, cost)
  local slots = lane.limit - lane.use
  if lane.rate then slots = math.min(slots, math.floor(lane.tokens / math.min(cost, lane.burst) + 0.000001)) end
  return slots
end

-- obstacle(h) → the first of its lanes that has no room for this job, or nothing. Its own slots, if it runs, count as free.
local function obstacle(h)
  local own = h[STATE] == 'running' and 1 or 0
  for i, spec in ipairs(h[LANES]) do
    local lane = lane_of(spec)
    if i ~= h[TURN] and room(lane, cost_of(spec)) + own < 1 then return i end
  end
end

-- keeps(lane, state) → does a job keep its turn in this lane when it goes to this state?
local function keeps(lane, state)
  if not lane.kind or lane.kind == '' then return false end
  return state == 'ready' or state == 'held' or state == 'scheduled' or (state == 'dead' and lane.kind == 'hold')
end

local function occupy(lane, id)
  lane.use = lane.use + 1
  enter(holders, '0', lane.name .. SEP .. id)
end

local function vacate(lane, id)
  lane.use = lane.use - 1
  withdraw(holders, lane.name .. SEP .. id)
  refill(lane)
end

-- take_turn(id, h): a job that waits for another lane keeps its place in the ordered one, if it is free.
local function take_turn(id, h)
  for i, spec in ipairs(h[LANES]) do
    local lane = lane_of(spec)
    if lane.kind and lane.kind ~= '' and h[TURN] == 0 and lane.use < lane.limit then
      h[TURN] = i
      occupy(lane, id)
    end
  end
end

-- leave_lanes(id, h, state): what a job gives up when it leaves its state for this one.
local function leave_lanes(id, h, state)
  local old = h[STATE]
  if old == 'ready' or old == 'held' then
    local home = lane_of(h[LANES][h[HOME]])
    local row = line_of(home, h[QUEUE])
    if old == 'held' then
      row.waiting, departed[id], away = row.waiting - 1, true, away + 1
    else
      for i, one in ipairs(row.shown) do
        if one == id then table.remove(row.shown, i) break end
      end
      if #row.shown == 0 then row.worst = 0 end
    end
    refill(home)
  elseif old == 'running' then
    h[TURN] = 0
    for i, spec in ipairs(h[LANES]) do
      local lane = lane_of(spec)
      if keeps(lane, state) then h[TURN] = i else vacate(lane, id) end
    end
  end
  if old ~= 'running' and state ~= 'running' and h[TURN] > 0 then
    local lane = lane_of(h[LANES][h[TURN]])
    if not keeps(lane, state) then
      vacate(lane, id)
      h[TURN] = 0
    end
  end
end

-- enter_lanes(id, h, state, member): what it takes there.
local function enter_lanes(id, h, state, member)
  if state == 'ready' or state == 'held' then
    local home = lane_of(h[LANES][h[HOME]])
    local row = line_of(home, h[QUEUE])
    if state == 'ready' then
      row.shown[#row.shown + 1] = id
      row.worst = math.max(row.worst, h[PRIORITY])
    else
      local group = home.name .. SEP .. h[QUEUE] .. SEP
      row.waiting, departed[id] = row.waiting + 1, nil
      parked[group] = parked[group] or {}
      parked[group][member] = true
      refill(home)
    end
  elseif state == 'running' then
    for i, spec in ipairs(h[LANES]) do
      local lane = lane_of(spec)
      if i ~= h[TURN] then occupy(lane, id) end
      if lane.rate then lane.tokens = lane.tokens - math.min(cost_of(spec), lane.burst) end
    end
  end
end

-- wanting(lane, row) → how many more of the waiters of this queue should be shown.
local function wanting(lane, row)
  if row.waiting <= 0 then return 0 end
  return math.min(SHOWN, room(lane, 1), #row.shown + row.waiting) - #row.shown
end

-- waiters(lane, queue, n) → the ids of the first n that wait in this lane.
local function waiters(lane, queue, n)
  local group = lane.name .. SEP .. queue
  local members = call('ZRANGE', held, '[' .. group .. SEP, '(' .. group .. AFTER, 'BYLEX', 'LIMIT', 0, n + away)
  if parked[group .. SEP] then
    for member in pairs(parked[group .. SEP]) do members[#members + 1] = member end
    table.sort(members)
  end
  local ids, last = {}, nil
  for _, member in ipairs(members) do
    local id = string.match(member, '[^\31]*$')
    if member ~= last and not departed[id] and #ids < n then ids[#ids + 1] = id end
    last = member
  end
  return ids
end

-- packed_lane(lane) → what is stored of it; nothing of a lane that nobody uses or waits for.
local function packed_lane(lane)
  local idle_lane = lane.use == 0 and not (lane.rate and lane.tokens < lane.burst)
  local found = { lane.use, lane.tokens or 0, lane.rate and now or 0, lane.declared, lane.differs }
  for queue, row in pairs(lane.lines) do
    if row.waiting > 0 or #row.shown > 0 then
      local n = #found
      found[n + 1], found[n + 2], found[n + 3], found[n + 4] = queue, row.waiting, row.worst, table.concat(row.shown, SEP)
      idle_lane = false
    end
  end
  return not idle_lane and cmsgpack.pack(found) or nil
end

-- save_lanes(): stores what changed.
local function save_lanes()
  for name, lane in pairs(known_lanes) do
    if lane.rest then
      local packed = packed_lane(lane)
      if packed and packed ~= lane.stored then set(lanes, name, packed) end
      if not packed and lane.stored then erase(lanes, name) end
      if packed and lane.use == 0 and lane.rate and not next(lane.lines) then
        enter(openings, now + math.ceil((lane.burst - lane.tokens) / lane.rate), name)   -- to be forgotten
      end
    end
  end
end
