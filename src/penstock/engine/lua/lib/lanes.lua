-- Lanes: locks, limits, order and rates. A job asks for any number of them and runs when all have room; only running jobs
-- hold slots (and, of an ordered lane, the job whose turn it is). A lane shows a few of its jobs in `ready`, as many as
-- could start; the others wait in `held`, under the lane that stopped them, and take no part in anything until it has room.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local jobs = require 'jobs'
local lane_waiters = require 'lane_waiters'
local lock_owners = require 'lock_owners'
local writes = require 'writes'
local call = request.call

local M = {}

local asked_for

M.MAX_SHOWN = 8   -- candidates that one lane shows of one queue at once, so that lanes take turns
local SLICE = 400

function M.reset()
  M.stored = {}   -- name → what is stored of it, or false: those that were read; '' once it was taken apart
  M.decoded = {}   -- name → lane, as it will be stored: those that were
  M.texts = {}   -- name → what will be stored, or false, of locks that were dealt with as text (lib/locks.lua)
  M.freed = {}   -- name → the turn (lib/lock_owners.lua) of those of them that are free and have a waiter
  M.to_refill = {}   -- names of lanes whose next waiters may be shown; also by name, but for such locks
  asked_for = {}   -- what jobs say of lanes → lane
end

function M.unpack_list(raw)
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
local function lane_from(name, raw)
  if not raw then return lane_with(name, nil, 0, 0, nil, request.now, '', '') end
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

-- row(lane, queue) → the jobs of one queue in a lane: how many wait, which are shown.
function M.row(lane, queue)
  local found = lane.lines[queue]
  if not found then
    found = { waiting = 0, worst = 0, shown = {} }
    lane.lines[queue] = found
  end
  return found
end

-- refill(lane): at the end of the script its next waiters are shown, if it has room.
function M.refill(lane)
  if not M.to_refill[lane.name] then
    M.to_refill[lane.name] = true
    M.to_refill[#M.to_refill + 1] = lane.name
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
      M.refill(lane)   -- it may allow more than before
    end
    lane.declared = word
    lane.limit, lane.rate, lane.burst = tonumber(limit) or math.huge, tonumber(rate), tonumber(burst) or 1
    lane.kind = kind ~= '' and kind or nil
  end
  if lane.set >= 0 then lane.limit = lane.set end
  if lane.kind then lane.limit = math.min(lane.limit, 1) end
  if lane.paused then lane.limit = 0 end
  if lane.rate then
    lane.tokens = math.min(lane.burst, (lane.tokens or lane.burst) + math.max(request.now - lane.at, 0) * lane.rate)
    lane.at = request.now
  end
end

-- decode(name) → the lane, which was read before, taken apart.
function M.decode(name)
  if M.decoded[name] then return M.decoded[name] end
  local text, raw = M.texts[name], M.stored[name]
  local changed = text ~= nil
  if M.freed[name] then text = lock_owners.without_owner(M.freed[name]) elseif not changed then text = raw end
  local fine, lane = pcall(lane_from, name, text or nil)
  if not fine then lane = lane_from(name) end   -- somebody else wrote it; reconcile counts again
  if lane.use < 0 then lock_owners.disown(lane) end
  if changed then lock_owners.recall(lane) end
  lane.stored, lane.changed, M.decoded[name] = raw, lane.changed or changed or M.freed[name] ~= nil, lane
  M.stored[name], M.texts[name], M.freed[name] = '', nil, nil
  return lane
end

-- fetch(names): reads lanes that are not known yet, in one go. Those that something is set for by hand are taken apart at once.
function M.fetch(names)
  local unknown, n = {}, 0
  for i = 1, #names do
    local name = names[i]
    if M.stored[name] == nil then
      n = n + 1
      unknown[n] = name
      M.stored[name] = false   -- it may be named again
    end
  end
  if n == 0 then return end
  local raw = call('HMGET', keys.lanes, unpack(unknown))
  for i = 1, n do M.stored[unknown[i]] = raw[i] end
  if call('HLEN', keys.limits) == 1 and call('HEXISTS', keys.limits, '') == 1 then return end   -- there is only the sentinel
  local by_hand = call('HMGET', keys.limits, unpack(unknown))
  for i = 1, n do
    if by_hand[i] then
      local fixed, lane = M.unpack_list(by_hand[i]), M.decode(unknown[i])
      lane.set, lane.paused = tonumber(fixed[1]) or -1, fixed[2] == 1
    end
  end
end

-- named(name, rest) → the lane, with what was last said of it, or this if nobody said anything.
function M.named(name, rest)
  local lane = M.decoded[name]
  if not lane then
    if M.stored[name] == nil then M.fetch({ name }) end
    lane = M.decode(name)
  end
  if not lane.rest then declare(lane, lane.declared ~= '' and lane.declared .. SEP .. '1' or rest or '') end
  return lane
end

-- of(spec) → the lane that a job asks for.
function M.of(spec)
  local lane = asked_for[spec]
  if not lane then
    local name = record.lane_name(spec)
    lane = M.named(name, string.sub(spec, #name + 2))
    asked_for[spec] = lane
  end
  return lane
end

-- declare_all(h): what a job that has just come says of its lanes.
function M.declare_all(h)
  for _, spec in ipairs(h[LANES]) do declare(M.of(spec), string.sub(spec, #record.lane_name(spec) + 2)) end
end

-- cost_of(spec) → how many tokens of the lane's rate a start takes.
local function cost_of(spec) return tonumber(string.match(spec, '\31([^\31]*)$')) or 1 end

-- price(lane, cost) → how many tokens there must be for it. One start may cost more than the burst: then a full burst is
-- enough, and the rest is paid afterwards.
function M.price(lane, cost) return math.min(cost, lane.burst) - 0.000001 end

-- turn_lane(h) → the lane whose turn this job keeps also while it does not run: the ordered one; of several the first by
-- name, so that no two jobs ever wait for each other's turns.
function M.turn_lane(h)
  local specs, found = h[LANES], nil
  if not specs[2] then return jobs.is_ordered(specs[1]) and 1 or nil end
  for i, spec in ipairs(specs) do
    if jobs.is_ordered(spec) and (not found or record.lane_name(spec) < record.lane_name(h[LANES][found])) then found = i end
  end
  return found
end

-- blocks(h, i) → has this lane of the job no room for it? A slot that it holds already counts as free.
local function blocks(h, i)
  local spec = h[LANES][i]
  local lane = M.of(spec)
  local own = (h[STATE] == 'running' or i == h[TURN]) and 1 or 0
  return lane.limit - lane.use + own < 1 or (lane.rate and lane.tokens < M.price(lane, cost_of(spec)))
end

-- blocking_lane(h) → the first of its lanes that has no room for this job, or nothing. The ordered one is asked first: a job waits
-- for another lane only when it is its turn.
function M.blocking_lane(h)
  local first = M.turn_lane(h)
  if first and blocks(h, first) then return first end
  for i in ipairs(h[LANES]) do
    if i ~= first and blocks(h, i) then return i end
  end
end

-- keeps(h, i, state) → does the job keep the turn in this lane when it goes to this state?
local function keeps(h, i, state)
  if i ~= M.turn_lane(h) then return false end
  return state == 'ready' or state == 'held' or state == 'scheduled'
    or (state == 'dead' and record.lane_kinds[h[LANES][i]] == 'hold')
end

local function occupy(lane, id)
  lane.use = lane.use + 1
  writes.add(keys.holders, '0', lane.name .. SEP .. id)
end

-- free_slot(lane, id), vacate(lane, id): the job has no slot of it any more. Less than none are never in use: that has a meaning
-- of its own (lib/locks.lua).
local function free_slot(lane, id)
  lane.use = math.max(lane.use - 1, 0)
  if lane.unlisted == id then lane.unlisted = nil end
end

function M.vacate(lane, id)
  free_slot(lane, id)
  writes.remove(keys.holders, lane.name .. SEP .. id)
  M.refill(lane)
end

-- wait_in(h, at): it will wait in this lane; if it is another than the ordered one, it takes the turn there.
function M.wait_in(h, at)
  local first = M.turn_lane(h)
  h.home = at
  if first and first ~= at and h[TURN] == 0 and h[STATE] ~= 'running' then h.turn = first end
end

-- claim_turn(id, h): it takes that turn.
function M.claim_turn(id, h)
  h[TURN], h.turn = h.turn, nil
  occupy(M.of(h[LANES][h[TURN]]), id)
end

-- show(row, id, h), unshow(row, id): this lane shows it to that queue, or does so no more.
function M.show(row, id, h)
  row.shown[#row.shown + 1] = id
  if h[PRIORITY] > row.worst then row.worst = h[PRIORITY] end
end

function M.unshow(row, id)
  for i, one in ipairs(row.shown) do
    if one == id then table.remove(row.shown, i) break end
  end
  if #row.shown == 0 then row.worst = 0 end
end

-- forget_waiter(member): something in `held` that is not a waiting job, and most likely was not counted.
function M.forget_waiter(member)
  writes.remove_later(keys.held, member)
  lane_waiters.left(member, string.match(member, '^[^\31]*\31[^\31]*\31') or '')
end

-- leave(id, h, state, member): what a job gives up when it leaves its state, where it is this member, for that one.
function M.leave(id, h, state, member)
  local old = h[STATE]
  if old == 'ready' or old == 'held' then
    local home = M.of(h[LANES][h[HOME]])
    local row = M.row(home, h[QUEUE])
    if old == 'held' then
      row.waiting = row.waiting - 1
      lane_waiters.left(member, home.name .. SEP .. h[QUEUE] .. SEP)
    else
      M.unshow(row, id)
    end
    M.refill(home)
  elseif old == 'running' then
    h[TURN] = 0
    for i, spec in ipairs(h[LANES]) do
      if keeps(h, i, state) then h[TURN] = i else M.vacate(M.of(spec), id) end
    end
  end
  if old ~= 'running' and state ~= 'running' and h[TURN] > 0 and not keeps(h, h[TURN], state) then
    M.vacate(M.of(h[LANES][h[TURN]]), id)
    h[TURN] = 0
  end
end

-- enter(id, h, state, member): what it takes there.
function M.enter(id, h, state, member)
  if state == 'ready' or state == 'held' then
    local home = M.of(h[LANES][h[HOME]])
    local row = M.row(home, h[QUEUE])
    if state == 'ready' then
      M.show(row, id, h)
    else
      row.waiting = row.waiting + 1
      lane_waiters.joined(member, home.name .. SEP .. h[QUEUE] .. SEP)
      M.refill(home)
    end
  elseif state == 'running' then
    for i, spec in ipairs(h[LANES]) do
      local lane = M.of(spec)
      if i ~= h[TURN] then occupy(lane, id) end
      if lane.rate then lane.tokens = lane.tokens - cost_of(spec) end
    end
  end
end

-- waiters(lane, queue, n) → the members of the first n that wait in this lane.
local function waiters(lane, queue, n)
  local found, count = lane_waiters.first(lane.name .. SEP .. queue .. SEP, n)
  if count then M.row(lane, queue).waiting = count end
  return found
end

-- room(lane, row) → how many of one queue could start. In an ordered lane that is taken it is one, if the turn is that of a
-- job which waits there itself; the second value says so.
function M.room(lane, row)
  local slots, turn_only = lane.limit - lane.use, false
  if (lane.kind or lane.differs ~= '') and slots == 0 and lane.use > 0 and #row.shown == 0 then slots, turn_only = 1, true end
  return slots, turn_only
end

-- tokens_for(lane) → how many starts its rate allows now, if each costs one.
function M.tokens_for(lane)
  return lane.rate and math.floor(lane.tokens / math.min(1, lane.burst) + 0.000001) or math.huge
end

-- next_waiters(lane, queue, most, turn) → the members of those of its waiters that could start now, with those that are shown not
-- more than its turn; and how many tokens must come together for the next one, if that is what it waits for.
function M.next_waiters(lane, queue, most, turn)
  local row, chosen = M.row(lane, queue), {}
  local slots, turn_only = M.room(lane, row)
  slots = math.min(slots, turn)
  if row.waiting <= 0 or slots <= #row.shown then return chosen end
  local n = math.min(slots, M.tokens_for(lane)) - #row.shown
  if n <= 0 then return chosen, #row.shown == 0 and 1 or nil end
  if not lane.rate and not turn_only then return waiters(lane, queue, math.min(n, most)) end
  for _, member in ipairs(waiters(lane, queue, math.min(n, most))) do
    if turn_only and not string.find(member, SEP .. jobs.FIRST .. SEP, 1, true) then return {} end
    local h = lane.rate and jobs.read({ jobs.last_part(member) })[1]
    local cost = h and h[STATE] == 'held' and cost_of(h[LANES][h[HOME]]) or 1
    if lane.rate and lane.tokens < M.price(lane, cost) then return chosen, #row.shown + #chosen == 0 and cost or nil end
    chosen[#chosen + 1] = member
  end
  return chosen
end

-- queues(lane) → the queues whose jobs it shows or holds, by name.
function M.queues(lane)
  local names = {}
  for queue in pairs(lane.lines) do names[#names + 1] = queue end
  if names[2] then table.sort(names) end
  return names
end

-- open_at(lane, at): it is looked at again then.
function M.open_at(lane, at)
  lane.opening = math.min(lane.opening or at, at)
  writes.add_later(keys.openings, lane.opening, lane.name)
  writes.wake_timer_at(keys.openings, lane.opening)
end

-- encode(lane) → what is stored of it; nothing of a lane that nobody uses or waits for. One whose rate is not full again
-- is forgotten when it is.
function M.encode(lane)
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
    M.open_at(lane, request.now + math.ceil((lane.burst - lane.tokens) / lane.rate))
  end
  if not busy then return nil end
  local length = n > 65530 and struct.pack('>BI4', 221, n + 5) or n > 10 and struct.pack('>BI2', 220, n + 5) or string.char(n + 149)
  local packed = length .. cmsgpack.pack(
    lane.use, lane.tokens or 0, lane.rate and request.now or 0, lane.declared, lane.differs, unpack(found, 1, math.min(n, SLICE)))
  for at = SLICE + 1, n, SLICE do packed = packed .. cmsgpack.pack(unpack(found, at, math.min(at + SLICE - 1, n))) end
  return packed
end

return M
