-- Lanes: locks, limits, order and rates. A job asks for any number of lanes, and runs when all of them have room.
-- Only running jobs hold slots, with one exception: the job whose turn it is keeps the slot of an ordered lane while
-- it waits. A lane shows a few of its jobs in `ready`, as many as could start. The others wait in `held`, under the
-- lane that has no room for them, and take part in nothing until it has.
--
-- `h` is the header of a job. A spec is what a job says of a lane: its name, limit, rate per ms, burst, kind and
-- cost; of a lock only the name. The home of a job is the lane that shows or holds it. Elsewhere: what a lane is in a
-- call, and how it is stored (lib/lane_record.lua); what it allows (lib/lane_limits.lua).

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local jobs = require 'jobs'
local lane_limits = require 'lane_limits'
local lane_record = require 'lane_record'
local lane_waiters = require 'lane_waiters'
local lock_owners = require 'lock_owners'
local writes = require 'writes'
local call = request.call

local M = {}

M.MAX_SHOWN = 8   -- jobs of one queue that a lane shows at once, so that lanes take turns

local lane_of_spec

function M.reset()
  M.stored = {}       -- name → what is stored of the lane, or false; '' once the lane is in `decoded`
  M.decoded = {}      -- name → the lane, as it will be stored
  M.texts = {}        -- name → what will be stored of a lock that is dealt with as text (lib/locks.lua), or false
  M.freed = {}        -- name → its turn (lib/lock_owners.lua), of such a lock that is free and has waiters
  M.to_refill = {}    -- names of lanes that show their next waiters at the end; name → true, but for freed locks
  lane_of_spec = {}   -- spec → lane
end

-- unpack_list(raw) → the list that is stored; an empty one if nothing is, or no list.
function M.unpack_list(raw)
  if not raw then return {} end
  local ok, list = pcall(cmsgpack.unpack, raw)
  return ok and type(list) == 'table' and list or {}
end

-- row(lane, queue) → its row for this queue.
function M.row(lane, queue)
  local row = lane.lines[queue]
  if not row then
    row = { waiting = 0, worst = 0, shown = {} }
    lane.lines[queue] = row
  end
  return row
end

-- refill(lane): at the end of this call it shows its next waiters, if it has room.
function M.refill(lane)
  if not M.to_refill[lane.name] then
    M.to_refill[lane.name] = true
    M.to_refill[#M.to_refill + 1] = lane.name
  end
end

-- Reading lanes.

-- declare(lane, rest): a job says this of the lane, behind its name.
local function declare(lane, rest)
  if lane.rest == rest then return end
  if lane_limits.declare(lane, rest) then M.refill(lane) end   -- it may allow more than before
end

-- decode(name) → the lane, of which fetch() has read what is stored.
function M.decode(name)
  local lane = M.decoded[name]
  if lane then return lane end
  local raw, text, turn = M.stored[name], M.texts[name], M.freed[name]
  local was_text = text ~= nil
  if turn then
    text = lock_owners.without_owner(turn)
  elseif not was_text then
    text = raw
  end
  local ok
  if text then ok, lane = pcall(lane_record.unpack, name, text) end
  if not ok then lane = lane_record.new(name) end   -- nothing is stored; or no lane is, then reconcile counts again
  if lane.use < 0 then lock_owners.disown(lane) end
  if was_text then lock_owners.recall(lane) end
  lane.stored, lane.changed = raw, lane.changed or was_text or turn ~= nil
  M.decoded[name] = lane
  M.stored[name], M.texts[name], M.freed[name] = '', nil, nil
  return lane
end

-- read_settings(names): decodes the lanes for which something was set by hand.
local function read_settings(names)
  if call('HLEN', keys.limits) == 1 and call('HEXISTS', keys.limits, '') == 1 then return end   -- only the sentinel
  for i, raw in ipairs(call('HMGET', keys.limits, unpack(names))) do
    if raw then
      local settings, lane = M.unpack_list(raw), M.decode(names[i])
      lane.set, lane.paused = tonumber(settings[1]) or -1, settings[2] == 1
    end
  end
end

-- fetch(names): reads the lanes that this call has not read before, in one go.
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
  read_settings(unknown)
end

-- named(name, rest) → the lane, with what the last job has declared; if none has, with this.
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
  local lane = lane_of_spec[spec]
  if not lane then
    local name = record.lane_name(spec)
    lane = M.named(name, string.sub(spec, #name + 2))
    lane_of_spec[spec] = lane
  end
  return lane
end

-- declare_all(h): a new job declares its lanes.
function M.declare_all(h)
  for _, spec in ipairs(h[LANES]) do declare(M.of(spec), string.sub(spec, #record.lane_name(spec) + 2)) end
end

-- Which lane of a job has no room.

-- turn_lane(h) → the position of the ordered lane among the job's lanes, or nothing. The job keeps its turn there
-- also while it does not run. Of several ordered lanes it is the first by name, so no two jobs wait for each other's
-- turns.
function M.turn_lane(h)
  local specs = h[LANES]
  if not specs[2] then return jobs.is_ordered(specs[1]) and 1 or nil end
  local first, first_name
  for i, spec in ipairs(specs) do
    local name = record.lane_name(spec)
    if jobs.is_ordered(spec) and (not first or name < first_name) then first, first_name = i, name end
  end
  return first
end

-- blocks(h, i) → has this lane of the job no room for it? A slot that the job holds already is room.
local function blocks(h, i)
  local spec = h[LANES][i]
  local lane = M.of(spec)
  local own = (h[STATE] == 'running' or i == h[TURN]) and 1 or 0
  if lane.limit - lane.use + own < 1 then return true end
  return lane.rate and lane_limits.lacks_tokens(lane, lane_limits.cost_of(spec))
end

-- blocking_lane(h) → the position of the first lane that has no room for this job, or nothing. The ordered lane is
-- looked at first: a job waits for its other lanes only when it is its turn.
function M.blocking_lane(h)
  local ordered = M.turn_lane(h)
  if ordered and blocks(h, ordered) then return ordered end
  for i in ipairs(h[LANES]) do
    if i ~= ordered and blocks(h, i) then return i end
  end
end

-- Slots and turns.

-- occupy(lane, id): the job takes a slot.
local function occupy(lane, id)
  lane.use = lane.use + 1
  writes.add(keys.holders, '0', lane.name .. SEP .. id)
end

-- vacate(lane, id): the job has no slot any more. `use` stays at 0 or above: -1 is how an owned lock is stored.
function M.vacate(lane, id)
  lane.use = math.max(lane.use - 1, 0)
  if lane.unlisted == id then lane.unlisted = nil end
  writes.remove(keys.holders, lane.name .. SEP .. id)
  M.refill(lane)
end

-- keeps_turn(h, i, state) → does the job keep its turn in this lane when it enters this state?
local function keeps_turn(h, i, state)
  if i ~= M.turn_lane(h) then return false end
  return state == 'ready' or state == 'held' or state == 'scheduled'
    or (state == 'dead' and record.lane_kinds[h[LANES][i]] == 'hold')
end

-- wait_in(h, at): with its next transition, the lane at this position becomes the job's home. If the job has an
-- ordered lane besides, it takes the turn there.
function M.wait_in(h, at)
  local ordered = M.turn_lane(h)
  h.home = at
  if ordered and ordered ~= at and h[TURN] == 0 and h[STATE] ~= 'running' then h.turn = ordered end
end

-- claim_turn(id, h): the job takes the turn that wait_in() has noted.
function M.claim_turn(id, h)
  h[TURN], h.turn = h.turn, nil
  occupy(M.of(h[LANES][h[TURN]]), id)
end

-- Shown and held jobs.

-- show(row, id, h): the lane shows this job to its queue.
function M.show(row, id, h)
  row.shown[#row.shown + 1] = id
  if h[PRIORITY] > row.worst then row.worst = h[PRIORITY] end
end

-- unshow(row, id): the lane does not show it any more.
function M.unshow(row, id)
  for i, shown_id in ipairs(row.shown) do
    if shown_id == id then table.remove(row.shown, i) break end
  end
  if #row.shown == 0 then row.worst = 0 end
end

-- forget_waiter(member): this member of `held` is no waiting job, and most likely was not counted as one.
function M.forget_waiter(member)
  writes.remove_later(keys.held, member)
  lane_waiters.left(member, string.match(member, '^[^\31]*\31[^\31]*\31') or '')
end

-- leave_home(id, h, member): its home neither shows nor holds the job any more.
local function leave_home(id, h, member)
  local home = M.of(h[LANES][h[HOME]])
  local row = M.row(home, h[QUEUE])
  if h[STATE] == 'held' then
    row.waiting = row.waiting - 1
    lane_waiters.left(member, home.name .. SEP .. h[QUEUE] .. SEP)
  else
    M.unshow(row, id)
  end
  M.refill(home)
end

-- enter_home(id, h, state, member): its home shows or holds the job from now on.
local function enter_home(id, h, state, member)
  local home = M.of(h[LANES][h[HOME]])
  local row = M.row(home, h[QUEUE])
  if state == 'ready' then
    M.show(row, id, h)
  else
    row.waiting = row.waiting + 1
    lane_waiters.joined(member, home.name .. SEP .. h[QUEUE] .. SEP)
    M.refill(home)
  end
end

-- leave(id, h, state, member): the job gives up what it has in its lanes and does not keep in this state, which it is
-- about to enter. `member` is its entry in the index of its present state.
function M.leave(id, h, state, member)
  local old = h[STATE]
  if old == 'ready' or old == 'held' then
    leave_home(id, h, member)
  elseif old == 'running' then
    h[TURN] = 0
    for i, spec in ipairs(h[LANES]) do
      if keeps_turn(h, i, state) then h[TURN] = i else M.vacate(M.of(spec), id) end
    end
  end
  if old ~= 'running' and state ~= 'running' and h[TURN] > 0 and not keeps_turn(h, h[TURN], state) then
    M.vacate(M.of(h[LANES][h[TURN]]), id)
    h[TURN] = 0
  end
end

-- enter(id, h, state, member): the job takes what this state needs in its lanes. `member` is its entry in the index of
-- this state.
function M.enter(id, h, state, member)
  if state == 'ready' or state == 'held' then
    enter_home(id, h, state, member)
  elseif state == 'running' then
    for i, spec in ipairs(h[LANES]) do
      local lane = M.of(spec)
      if i ~= h[TURN] then occupy(lane, id) end
      if lane.rate then lane.tokens = lane.tokens - lane_limits.cost_of(spec) end
    end
  end
end

-- The next waiters of a lane.

-- first_waiters(lane, queue, n) → the first n members of `held` in this lane and queue.
local function first_waiters(lane, queue, n)
  local members, count = lane_waiters.first(lane.name .. SEP .. queue .. SEP, n)
  if count then M.row(lane, queue).waiting = count end
  return members
end

-- cost_of_waiter(lane, member) → how many tokens its start takes.
local function cost_of_waiter(lane, member)
  local h = lane.rate and jobs.read({ jobs.last_part(member) })[1]
  return h and h[STATE] == 'held' and lane_limits.cost_of(h[LANES][h[HOME]]) or 1
end

-- next_waiters(lane, queue, most, turn) → the members of `held` that could start now: at most `most`, and with the
-- jobs that are shown at most `turn`. If the lane waits for its rate, it also returns how many tokens the next job
-- needs.
function M.next_waiters(lane, queue, most, turn)
  local row, chosen = M.row(lane, queue), {}
  local slots, turn_only = lane_limits.room(lane, row)
  slots = math.min(slots, turn)
  if row.waiting <= 0 or slots <= #row.shown then return chosen end
  local n = math.min(slots, lane_limits.tokens_for(lane)) - #row.shown
  if n <= 0 then return chosen, #row.shown == 0 and 1 or nil end
  local members = first_waiters(lane, queue, math.min(n, most))
  if not lane.rate and not turn_only then return members end
  for _, member in ipairs(members) do
    if turn_only and not string.find(member, SEP .. jobs.FIRST .. SEP, 1, true) then return {} end
    local cost = cost_of_waiter(lane, member)
    if lane_limits.lacks_tokens(lane, cost) then return chosen, #row.shown + #chosen == 0 and cost or nil end
    chosen[#chosen + 1] = member
  end
  return chosen
end

-- queues(lane) → the queues that it has rows for, by name.
function M.queues(lane)
  local names = {}
  for queue in pairs(lane.lines) do names[#names + 1] = queue end
  if names[2] then table.sort(names) end
  return names
end

-- Storing lanes.

-- open_at(lane, at): the timer calls admit for the lane at this time.
function M.open_at(lane, at)
  lane.opening = math.min(lane.opening or at, at)
  writes.add_later(keys.openings, lane.opening, lane.name)
  writes.wake_timer_at(keys.openings, lane.opening)
end

-- encode(lane) → what is stored of it; nothing if nobody uses it or waits for it, and its bucket of tokens is full.
-- When that will be, the timer looks at it again.
function M.encode(lane)
  local values, n = lane_record.values_of(lane.lines)
  if lane.use == 0 and n == 0 then
    local is_filling = lane.rate and lane.tokens < lane.burst
    if not is_filling then return nil end
    M.open_at(lane, request.now + math.ceil((lane.burst - lane.tokens) / lane.rate))
  end
  return lane_record.pack(lane, values, n)
end

M.price = lane_limits.price
M.room = lane_limits.room
M.tokens_for = lane_limits.tokens_for

return M
