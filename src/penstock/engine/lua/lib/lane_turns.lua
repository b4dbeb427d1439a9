-- Places in line: where a job that may run takes its place, and which of its waiters a lane shows next.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local batches = require 'batches'
local counters = require 'counters'
local jobs = require 'jobs'
local lane_waiters = require 'lane_waiters'
local lanes = require 'lanes'
local locks = require 'locks'
local transition = require 'transition'
local writes = require 'writes'

local M = {}

local wanted

local MOST_SHOWN = 500

function M.reset()
  wanted = {}   -- id → the lane that such a one asks for
end

-- rank(h) → its place among the jobs of one lane; the lower is first.
local function rank(h) return record.rank(h[PRIORITY], h[ARRIVAL]) end

-- steps_back(lane, row, h) → has the last of those that are shown made way for this one, which comes before it?
local function steps_back(lane, row, h)
  if lane.kind or #row.shown == 0 or row.worst <= h[PRIORITY] then return false end
  local headers, worst = jobs.read(row.shown), nil
  for i, id in ipairs(row.shown) do
    local one = headers[i]
    if one and one[STATE] == 'ready' and (not worst or rank(one) > rank(jobs.decoded[worst])) then worst = id end
  end
  if not worst or jobs.decoded[worst][PRIORITY] <= h[PRIORITY] then return false end
  transition.move(nil, worst, jobs.decoded[worst], 'held')
  return true
end

-- lined(h, i) → is there a line in this lane, at whose end the job has to wait?
local function lined(h, i)
  local lane = lanes.of(h[LANES][i])
  local row, own = lanes.row(lane, h[QUEUE]), h[STATE] == 'running' and 1 or 0
  if row.waiting > 0 then return true end
  return #row.shown >= math.min(lanes.MAX_SHOWN, lane.limit - lane.use + own, lanes.tokens_for(lane))
end

-- place_in_line(h) → the lane in which a job that may run from now on takes its place, and whether it is shown or held there.
function M.place_in_line(h)
  local first, blocked = lanes.turn_lane(h), lanes.blocking_lane(h)
  local has_turn = h[STATE] == 'running' or h[TURN] > 0
  if first and not has_turn and blocked ~= first and lined(h, first) then return first, 'held' end
  if blocked then
    local lane = lanes.of(h[LANES][blocked])
    while steps_back(lane, lanes.row(lane, h[QUEUE]), h) do end   -- so that this one is the next
    return blocked, 'held'
  end
  for i, spec in ipairs(h[LANES]) do
    if not (i == first and has_turn) and lined(h, i) then
      local lane = lanes.of(spec)
      return i, steps_back(lane, lanes.row(lane, h[QUEUE]), h) and 'ready' or 'held'
    end
  end
  return first or 1, 'ready'
end

-- show(id, member, h, verb) → is this a waiter? It is shown, at the tail of its line so that lanes take turns.
local function show(id, member, h, verb)
  if not h or h[STATE] ~= 'held' or jobs.held_member(id, h) ~= member then
    lanes.forget_waiter(member)
    return false
  end
  local specs = h[LANES]
  -- The record stays but for its head and place if it says its arrival, as one with a lane does; elsewhere that follows from the place.
  h.tail, h.bare = true, #specs == 1 and #specs[1] <= LONGEST_LANE and jobs.kept_records[id] or nil
  transition.move(verb, id, h, 'ready')
  h.tail = nil
  return true
end

-- show_alike(id, member, kind, verb) → the same for one without a header, of this kind.
local function show_alike(id, member, kind, verb)
  local queue, priority = kind[QUEUE], kind[PRIORITY]
  local packed, b = jobs.kept_records[id], kind[BATCH] ~= '' and batches.get(kind[BATCH])
  local since = struct.unpack(TIME_FORMAT, packed, SINCE_AT)
  local number = struct.unpack(TIME_FORMAT, packed, SHORTEST_RECORD + #kind.label + #wanted[id] + 1)   -- its arrival
  local name = record.lane_name(wanted[id])
  local row_name = name .. SEP .. queue .. SEP
  local is_it = row_name .. record.near_rank(priority, number) .. SEP .. id == member
  if verb or not is_it or (b and b[B_PRIORITY] >= 0 and b[B_PRIORITY] ~= kind[PRIORITY]) then
    jobs.kept_records[id] = nil
    return show(id, member, jobs.read({ id })[1], verb)
  end
  transition.seq = (transition.seq or tonumber(meta.seq or 0)) + 1
  packed = record.shown_record(packed, READY_FRONT, transition.seq)
  jobs.rewritten[id] = packed
  writes.put(2, 'HSET', keys.jobs, id, packed)
  writes.put(3, 'ZREM', keys.held, member)
  writes.put(5, 'ZADD', keys.ready, '0', queue .. SEP .. record.near_rank(priority, transition.seq) .. SEP .. id)
  local row = lanes.row(lanes.of(wanted[id]), queue)
  row.waiting = row.waiting - 1
  lane_waiters.left(member, row_name)
  lanes.show(row, id, kind)
  counters.measure('lane', queue, request.now - since, 1)
  kind.shown = (kind.shown or 0) + 1
  return true
end

-- glimpse_of_waiter(id, packed) → the header of one that a lane holds, or its kind if there is no more to say; nothing if it is cut off.
local function glimpse_of_waiter(id, packed)
  if string.sub(packed, 1, FRONT) ~= HELD_FRONT or record.has_rare_fields(packed) then return jobs.waiting_header(id, packed) end
  local kind, spec, to = record.form_in(packed)
  if not spec or not record.payload_fits(#packed - to, struct.unpack(SIZE_FORMAT, packed, SIZE_AT)) then return nil end
  wanted[id] = spec
  return kind
end

-- next_in(lane, found, ids): adds those that it shows next, as members and ids; a rate opens again later, and so does a lane of
-- so many queues that one call cannot show a job of each.
local function next_in(lane, found, ids)
  for _, queue in ipairs(lanes.queues(lane)) do
    local row, members, tokens = lane.lines[queue], {}, nil
    if #found < MOST_SHOWN then
      members, tokens = lanes.next_waiters(lane, queue, lanes.MAX_SHOWN, lanes.MAX_SHOWN)
    elseif row.waiting > 0 and #row.shown == 0 and lanes.room(lane, row) > 0 then
      lanes.open_at(lane, request.now + 5)
    end
    for _, member in ipairs(members) do found[#found + 1], ids[#ids + 1] = member, jobs.last_part(member) end
    if tokens and row.waiting > 0 then
      lanes.open_at(lane, request.now + math.max(math.ceil((lanes.price(lane, tokens) - lane.tokens) / lane.rate), 5))
    end
  end
end

-- next_ones(names) → the members of those that these lanes show next, their ids and their headers.
local function next_ones(names)
  local found, ids = {}, {}
  for _, name in ipairs(names) do next_in(lanes.named(name), found, ids) end
  return found, ids, jobs.read_waiting(ids, glimpse_of_waiter)
end

-- show_next(names, verb): these lanes show their next waiters. Again, should one of them have been no waiter.
local function show_next(names, verb)
  local all_were = true
  local members, ids, headers = next_ones(names)
  for i, member in ipairs(members) do
    local h = headers[i]
    all_were = (h and h.form and show_alike or show)(ids[i], member, h, verb) and all_were
  end
  if not all_were then return show_next(names, verb) end
end

-- show_waiters(names, verb): these lanes show their next waiters, in this order; locks that were freed do so in runs (lib/locks.lua), as far
-- as that goes.
function M.show_waiters(names, verb)
  local at, count = 1, #names
  while at <= count do
    local from = lanes.freed[names[at]] and locks.show_freed(names, at) or at
    local others = {}
    if from == at then
      repeat
        others[#others + 1] = names[from]
        from = from + 1
      until from > count or lanes.freed[names[from]]
      show_next(others, verb)
    end
    at = from
  end
  for _, kind in ipairs(record.kinds) do
    local n = kind.shown or 0
    if n > 0 then
      counters.add_to(counters.count_changes, 'held', kind[QUEUE], -n)
      counters.became_ready[kind[QUEUE]], kind.shown = (counters.became_ready[kind[QUEUE]] or 0) + n, 0
    end
  end
end

return M
