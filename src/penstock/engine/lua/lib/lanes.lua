-- Lanes: locks, limits, order and rates. A job asks for any number of them and runs when all have room; only running jobs
-- hold slots (and, of an ordered lane, the job whose turn it is). A lane shows a few of its jobs in `ready`, as many as
-- could start; the others wait in `held`, under the lane that stopped them, and take no part in anything until it has room.
-- keys: lanes limits holders openings

local AT_ONCE = 8     -- candidates that one lane shows of one queue at once, so that lanes take turns
local lanes_read = {}   -- name → what is stored of it, or false: those that were read; '' once it was taken apart
local known_lanes = {}  -- name → lane, as it will be stored: those that were
local lane_texts = {}   -- name → what will be stored, or false, of locks that were dealt with as text (lib/locks.lua)
local freed = {}        -- name → the turn (lib/owners.lua) of those of them that are free and have a waiter
local lock_kit = {}     -- what deals with them
local refills = {}  -- names of lanes whose next waiters may be shown; also by name, but for such locks
local asked_for = {}    -- what jobs say of lanes → lane

-- on demand: need_lanes
local function unpacked(raw)
  if not raw then return {} end
  local fine, found = pcall(cmsgpack.unpack, raw)
  return fine and type(found) == 'table' and found or {}
end

-- row_of(rows, queue, number, worst, shown, …): adds that of one queue, and of those that follow.
local function row_of(rows, queue, number, worst, shown, ...)
  if not queue then return rows end
  local ids = {}
  for id in string.gmatch(shown, '[^\31]+') do ids[#ids + 1] = id end
  rows[queue] = { waiting = number + 0, worst = worst + 0, shown = ids }
  return row_of(rows, ...)
end

-- lane_with(name, raw, _, in use, tokens, as of, declared, differs, then per queue: its name, how many wait, worst priority shown,
-- ids that are shown) → the lane of which this is stored.
local function lane_with(name, raw, _, use, tokens, at, declared, differs, ...)
  return {
    name = name, stored = raw, use = use + 0, tokens = tokens, at = at + 0, declared = declared .. '', differs = differs .. '',
    lines = row_of({}, ...), limit = math.huge, set = -1, paused = false, had_rate = raw and at > 0,
  }
end

-- rows_from(rows, at, queue, …) → where the next ones are; these are added.
local function rows_from(rows, at, ...)
  row_of(rows, ...)
  return at
end

-- lane_from(name, raw) → a lane. Its values are read as they follow the length of their array: see whole(). There may be more
-- rows than a function can be given.
local SLICE = 400
local function lane_from(name, raw)
  if not raw then return lane_with(name, nil, 0, 0, nil, now, '', '') end
  local n, at = string.byte(raw) - 144, 1
  if n == 77 then n, at = struct.unpack('>I4', raw, 2), 5 elseif n > 15 then n, at = struct.unpack('>I2', raw, 2), 3 end
  if n <= SLICE then return lane_with(name, raw, cmsgpack.unpack_limit(raw, n, at)) end
  local lane = lane_with(name, raw, cmsgpack.unpack_limit(raw, 5, at))
  at = cmsgpack.unpack_limit(raw, 5, at)
  for left = n - 5, 1, -SLICE do
    at = rows_from(lane.lines, cmsgpack.unpack_limit(raw, math.min(left, SLICE), at))
  end
  return lane
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

-- refill(lane): at the end of the script its next waiters are shown, if it has room.
local function refill(lane)
  if not refills[lane.name] then
    refills[lane.name] = true
    refills[#refills + 1] = lane.name
  end
end

-- declare(lane, rest): what a job says of a lane: limit, rate per ms, burst, kind, cost. The word of the job that came last
-- counts, also for those before it; one that differed is kept for people to see.
local function declare(lane, rest)
  if lane.rest == rest then return end
  lane.rest = rest
  local limit, rate, burst, kind = string.match(rest, '^([^\31]*)\31([^\31]*)\31([^\31]*)\31([^\31]*)')
  if not kind then
    lane.limit = 1
  else
    local word = limit .. SEP .. rate .. SEP .. burst .. SEP .. kind
    if lane.declared ~= '' and lane.declared ~= word then
      lane.differs = lane.declared
      refill(lane)   -- it may allow more than before
    end
    lane.declared = word
    lane.limit, lane.rate, lane.burst = tonumber(limit) or math.huge, tonumber(rate), tonumber(burst) or 1
    lane.kind = kind ~= '' and kind or nil
  end
  if lane.set >= 0 then lane.limit = lane.set end
  if lane.kind then lane.limit = math.min(lane.limit, 1) end
  if lane.paused then lane.limit = 0 end
  if lane.rate then
    lane.tokens = math.min(lane.burst, (lane.tokens or lane.burst) + math.max(now - lane.at, 0) * lane.rate)
    lane.at = now
  end
end

-- lane_apart(name) → the lane, which was read before, taken apart.
local function lane_apart(name)
  if known_lanes[name] then return known_lanes[name] end
  local text, raw = lane_texts[name], lanes_read[name]
  local changed = text ~= nil
  if freed[name] then text = lock_kit.without_owner(freed[name]) elseif not changed then text = raw end
  local fine, lane = pcall(lane_from, name, text or nil)
  if not fine then lane = lane_from(name) end   -- somebody else wrote it; reconcile counts again
  if lane.use < 0 then lock_kit.disown(lane) end
  if changed then lock_kit.recall(lane) end
  lane.stored, lane.changed, known_lanes[name] = raw, lane.changed or changed or freed[name] ~= nil, lane
  lanes_read[name], lane_texts[name], freed[name] = '', nil, nil
  return lane
end

-- fetch(names): reads lanes that are not known yet, in one go. Those that something is set for by hand are taken apart at once.
local function fetch(names)
  local unknown, n = {}, 0
  for i = 1, #names do
    local name = names[i]
    if lanes_read[name] == nil then
      n = n + 1
      unknown[n] = name
      lanes_read[name] = false   -- it may be named again
    end
  end
  if n == 0 then return end
  local raw = call('HMGET', lanes, unpack(unknown))
  for i = 1, n do lanes_read[unknown[i]] = raw[i] end
  if call('HLEN', limits) == 1 and call('HEXISTS', limits, '') == 1 then return end   -- there is only the sentinel
  local by_hand = call('HMGET', limits, unpack(unknown))
  for i = 1, n do
    if by_hand[i] then
      local fixed, lane = unpacked(by_hand[i]), lane_apart(unknown[i])
      lane.set, lane.paused = tonumber(fixed[1]) or -1, fixed[2] == 1
    end
  end
end

-- lane_named(name, rest) → the lane, with what was last said of it, or this if nobody said anything.
local function lane_named(name, rest)
  local lane = known_lanes[name]
  if not lane then
    if lanes_read[name] == nil then fetch({ name }) end
    lane = lane_apart(name)
  end
  if not lane.rest then declare(lane, lane.declared ~= '' and lane.declared .. SEP .. '1' or rest or '') end
  return lane
end

-- lane_of(spec) → the lane that a job asks for.
local function lane_of(spec)
  local lane = asked_for[spec]
  if not lane then
    local name = lane_name(spec)
    lane = lane_named(name, string.sub(spec, #name + 2))
    asked_for[spec] = lane
  end
  return lane
end

-- announce(h): what a job that has just come says of its lanes.
local function announce(h)
  for _, spec in ipairs(h[LANES]) do declare(lane_of(spec), string.sub(spec, #lane_name(spec) + 2)) end
end

-- cost_of(spec) → how many tokens of the lane's rate a start takes.
local function cost_of(spec) return tonumber(string.match(spec, '\31([^\31]*)$')) or 1 end

-- price(lane, cost) → how many tokens there must be for it. One start may cost more than the burst: then a full burst is
-- enough, and the rest is paid afterwards.
local function price(lane, cost) return math.min(cost, lane.burst) - 0.000001 end

-- turn_lane(h) → the lane whose turn this job keeps also while it does not run: the ordered one; of several the first by
-- name, so that no two jobs ever wait for each other's turns.
local function turn_lane(h)
  local specs, found = h[LANES], nil
  if not specs[2] then return is_ordered(specs[1]) and 1 or nil end
  for i, spec in ipairs(specs) do
    if is_ordered(spec) and (not found or lane_name(spec) < lane_name(h[LANES][found])) then found = i end
  end
  return found
end

-- blocks(h, i) → has this lane of the job no room for it? A slot that it holds already counts as free.
local function blocks(h, i)
  local spec = h[LANES][i]
  local lane = lane_of(spec)
  local own = (h[STATE] == 'running' or i == h[TURN]) and 1 or 0
  return lane.limit - lane.use + own < 1 or (lane.rate and lane.tokens < price(lane, cost_of(spec)))
end

-- obstacle(h) → the first of its lanes that has no room for this job, or nothing. The ordered one is asked first: a job waits
-- for another lane only when it is its turn.
local function obstacle(h)
  local first = turn_lane(h)
  if first and blocks(h, first) then return first end
  for i in ipairs(h[LANES]) do
    if i ~= first and blocks(h, i) then return i end
  end
end

-- keeps(h, i, state) → does the job keep the turn in this lane when it goes to this state?
local function keeps(h, i, state)
  if i ~= turn_lane(h) then return false end
  return state == 'ready' or state == 'held' or state == 'scheduled'
    or (state == 'dead' and lane_kinds[h[LANES][i]] == 'hold')
end

local function occupy(lane, id)
  lane.use = lane.use + 1
  add(holders, '0', lane.name .. SEP .. id)
end

-- free_slot(lane, id), vacate(lane, id): the job has no slot of it any more. Less than none are never in use: that has a meaning
-- of its own (lib/locks.lua).
local function free_slot(lane, id)
  lane.use = math.max(lane.use - 1, 0)
  if lane.unlisted == id then lane.unlisted = nil end
end
local function vacate(lane, id)
  free_slot(lane, id)
  drop(holders, lane.name .. SEP .. id)
  refill(lane)
end

-- wait_under(h, at): it will wait in this lane; if it is another than the ordered one, it takes the turn there.
local function wait_under(h, at)
  local first = turn_lane(h)
  h.home = at
  if first and first ~= at and h[TURN] == 0 and h[STATE] ~= 'running' then h.turn = first end
end

-- claim_turn(id, h): it takes that turn.
local function claim_turn(id, h)
  h[TURN], h.turn = h.turn, nil
  occupy(lane_of(h[LANES][h[TURN]]), id)
end

-- show_in(row, id, h), unshow_in(row, id): this lane shows it to that queue, or does so no more.
local function show_in(row, id, h)
  row.shown[#row.shown + 1] = id
  if h[PRIORITY] > row.worst then row.worst = h[PRIORITY] end
end
local function unshow_in(row, id)
  for i, one in ipairs(row.shown) do
    if one == id then table.remove(row.shown, i) break end
  end
  if #row.shown == 0 then row.worst = 0 end
end

-- forget_waiter(member): something in `held` that is not a waiting job, and most likely was not counted.
local function forget_waiter(member)
  withdraw(held, member)
  left_held(member, string.match(member, '^[^\31]*\31[^\31]*\31') or '')
end

-- leave_lanes(id, h, state, member): what a job gives up when it leaves its state, where it is this member, for that one.
local function leave_lanes(id, h, state, member)
  local old = h[STATE]
  if old == 'ready' or old == 'held' then
    local home = lane_of(h[LANES][h[HOME]])
    local row = line_of(home, h[QUEUE])
    if old == 'held' then
      row.waiting = row.waiting - 1
      left_held(member, home.name .. SEP .. h[QUEUE] .. SEP)
    else
      unshow_in(row, id)
    end
    refill(home)
  elseif old == 'running' then
    h[TURN] = 0
    for i, spec in ipairs(h[LANES]) do
      if keeps(h, i, state) then h[TURN] = i else vacate(lane_of(spec), id) end
    end
  end
  if old ~= 'running' and state ~= 'running' and h[TURN] > 0 and not keeps(h, h[TURN], state) then
    vacate(lane_of(h[LANES][h[TURN]]), id)
    h[TURN] = 0
  end
end

-- enter_lanes(id, h, state, member): what it takes there.
local function enter_lanes(id, h, state, member)
  if state == 'ready' or state == 'held' then
    local home = lane_of(h[LANES][h[HOME]])
    local row = line_of(home, h[QUEUE])
    if state == 'ready' then
      show_in(row, id, h)
    else
      row.waiting = row.waiting + 1
      joined(member, home.name .. SEP .. h[QUEUE] .. SEP)
      refill(home)
    end
  elseif state == 'running' then
    for i, spec in ipairs(h[LANES]) do
      local lane = lane_of(spec)
      if i ~= h[TURN] then occupy(lane, id) end
      if lane.rate then lane.tokens = lane.tokens - cost_of(spec) end
    end
  end
end

-- waiters(lane, queue, n) → the members of the first n that wait in this lane.
local function waiters(lane, queue, n)
  local found, count = first_in(lane.name .. SEP .. queue .. SEP, n)
  if count then line_of(lane, queue).waiting = count end
  return found
end

-- room(lane, row) → how many of one queue could start. In an ordered lane that is taken it is one, if the turn is that of a
-- job which waits there itself; the second value says so.
local function room(lane, row)
  local slots, turn_only = lane.limit - lane.use, false
  if (lane.kind or lane.differs ~= '') and slots == 0 and lane.use > 0 and #row.shown == 0 then slots, turn_only = 1, true end
  return slots, turn_only
end

-- tokens_for(lane) → how many starts its rate allows now, if each costs one.
local function tokens_for(lane)
  return lane.rate and math.floor(lane.tokens / math.min(1, lane.burst) + 0.000001) or math.huge
end

-- next_of(lane, queue, most, turn) → the members of those of its waiters that could start now, with those that are shown not
-- more than its turn; and how many tokens must come together for the next one, if that is what it waits for.
local function next_of(lane, queue, most, turn)
  local row, chosen = line_of(lane, queue), {}
  local slots, turn_only = room(lane, row)
  slots = math.min(slots, turn)
  if row.waiting <= 0 or slots <= #row.shown then return chosen end
  local n = math.min(slots, tokens_for(lane)) - #row.shown
  if n <= 0 then return chosen, #row.shown == 0 and 1 or nil end
  if not lane.rate and not turn_only then return waiters(lane, queue, math.min(n, most)) end
  for _, member in ipairs(waiters(lane, queue, math.min(n, most))) do
    if turn_only and not string.find(member, SEP .. FIRST .. SEP, 1, true) then return {} end
    local h = lane.rate and read({ last_part(member) })[1]
    local cost = h and h[STATE] == 'held' and cost_of(h[LANES][h[HOME]]) or 1
    if lane.rate and lane.tokens < price(lane, cost) then return chosen, #row.shown + #chosen == 0 and cost or nil end
    chosen[#chosen + 1] = member
  end
  return chosen
end

-- queues_of(lane) → the queues whose jobs it shows or holds, by name.
local function queues_of(lane)
  local names = {}
  for queue in pairs(lane.lines) do names[#names + 1] = queue end
  if names[2] then table.sort(names) end
  return names
end

-- opens(lane, at): it is looked at again then.
local function opens(lane, at)
  lane.opening = math.min(lane.opening or at, at)
  enter(openings, lane.opening, lane.name)
  alarm(openings, lane.opening)
end

-- packed_lane(lane) → what is stored of it; nothing of a lane that nobody uses or waits for. One whose rate is not full again
-- is forgotten when it is.
local function packed_lane(lane)
  local found, n = {}, 0
  for queue, row in pairs(lane.lines) do
    if row.waiting > 0 or #row.shown > 0 then
      found[n + 1], found[n + 2], found[n + 3], found[n + 4] = queue, row.waiting, row.worst, table.concat(row.shown, SEP)
      n = n + 4
    end
  end
  local busy = lane.use ~= 0 or n > 0
  if not busy and lane.rate and lane.tokens < lane.burst then
    busy = true
    opens(lane, now + math.ceil((lane.burst - lane.tokens) / lane.rate))
  end
  if not busy then return nil end
  local length = n > 65530 and struct.pack('>BI4', 221, n + 5) or n > 10 and struct.pack('>BI2', 220, n + 5) or string.char(n + 149)
  local packed = length .. cmsgpack.pack(
    lane.use, lane.tokens or 0, lane.rate and now or 0, lane.declared, lane.differs, unpack(found, 1, math.min(n, SLICE)))
  for at = SLICE + 1, n, SLICE do packed = packed .. cmsgpack.pack(unpack(found, at, math.min(at + SLICE - 1, n))) end
  return packed
end

-- save_lanes(): stores what changed.
local function save_lanes()
  local records = pile(4, 'HSET', lanes)
  local n = records.n
  for name, text in pairs(lane_texts) do
    if text then
      n = n + 2
      records[n - 1] = name
      records[n] = text
    else
      erase(lanes, name)
    end
  end
  records.n = n
  for name, lane in pairs(known_lanes) do
    if lane.rest or lane.changed then
      local packed = lock_kit.handed_over and lock_kit.handed_over(lane) or packed_lane(lane)
      if lane.unlisted then add(holders, '0', name .. SEP .. lane.unlisted) end
      if packed and packed ~= lane.stored then put(4, 'HSET', lanes, name, packed) end
      if not packed and lane.stored then
        erase(lanes, name)
        if lane.rate or lane.had_rate then withdraw(openings, name) end
      end
    end
  end
end
