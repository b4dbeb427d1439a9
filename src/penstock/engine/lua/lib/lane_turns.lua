-- Places in line: where a job that may run takes its place, and which of its waiters a lane shows next.
--
-- `h` is the header of a job, `b` a batch. A waiter is a job that a lane holds. Most waiters are shown without their
-- header, which takes less work: their kind (lib/record.lua) and their lane say all that is needed.

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

local MAX_SHOWN_AT_ONCE = 500   -- by one round of show_next
local NEXT_ROUND = 5            -- ms until a lane is looked at again at the earliest

local spec_of

function M.reset()
  spec_of = {}   -- id of a waiter without a header → the spec of its lane
end

-- rank(h) → its place among the jobs of one lane, as text; the first has the lowest.
local function rank(h) return record.rank(h[PRIORITY], h[ARRIVAL]) end

-- worst_shown(row) → the header of the last of the jobs that a lane shows to a queue, and its id.
local function worst_shown(row)
  local headers, worst, worst_id = jobs.read(row.shown), nil, nil
  for i, id in ipairs(row.shown) do
    local h = headers[i]
    if h and h[STATE] == 'ready' and (not worst or rank(h) > rank(worst)) then worst, worst_id = h, id end
  end
  return worst, worst_id
end

-- make_room(lane, row, h) → was the last job that the lane shows held again, since this one comes before it?
local function make_room(lane, row, h)
  if lane.kind or #row.shown == 0 or row.worst <= h[PRIORITY] then return false end
  local worst, worst_id = worst_shown(row)
  if not worst or worst[PRIORITY] <= h[PRIORITY] then return false end
  transition.move(nil, worst_id, worst, 'held')
  return true
end

-- has_line(h, i) → does the job have to wait behind others in this lane, although there is room?
local function has_line(h, i)
  local lane = lanes.of(h[LANES][i])
  local row, own = lanes.row(lane, h[QUEUE]), h[STATE] == 'running' and 1 or 0
  if row.waiting > 0 then return true end
  return #row.shown >= math.min(lanes.MAX_SHOWN, lane.limit - lane.use + own, lanes.tokens_for(lane))
end

-- place_in_line(h) → the position of the lane in which a job that may run takes its place, and ready or held: whether
-- that lane shows it.
function M.place_in_line(h)
  local ordered, blocked = lanes.turn_lane(h), lanes.blocking_lane(h)
  local has_turn = h[STATE] == 'running' or h[TURN] > 0
  if ordered and not has_turn and blocked ~= ordered and has_line(h, ordered) then return ordered, 'held' end
  if blocked then
    local lane = lanes.of(h[LANES][blocked])
    while make_room(lane, lanes.row(lane, h[QUEUE]), h) do end   -- so that this job is the next
    return blocked, 'held'
  end
  for i, spec in ipairs(h[LANES]) do
    if not (i == ordered and has_turn) and has_line(h, i) then
      local lane = lanes.of(spec)
      return i, make_room(lane, lanes.row(lane, h[QUEUE]), h) and 'ready' or 'held'
    end
  end
  return ordered or 1, 'ready'
end

-- show(id, member, h, verb) → is this a waiter? It is shown, at the tail of its line so that lanes take turns.
local function show(id, member, h, verb)
  if not h or h[STATE] ~= 'held' or jobs.held_member(id, h) ~= member then
    lanes.forget_waiter(member)
    return false
  end
  -- A job with one lane has its arrival in its record, which stays but for its front and its place in line. For other
  -- jobs the arrival would follow from that place.
  local specs = h[LANES]
  h.bare = #specs == 1 and #specs[1] <= LONGEST_LANE and jobs.kept_records[id] or nil
  h.tail = true
  transition.move(verb, id, h, 'ready')
  h.tail = nil
  return true
end

-- show_of_kind(id, member, kind, verb) → the same for a waiter of this kind without a header. It gets one if the
-- event names it (verb), if its batch asks for another priority, or if it does not wait here.
local function show_of_kind(id, member, kind, verb)
  local queue, priority, spec = kind[QUEUE], kind[PRIORITY], spec_of[id]
  local packed, b = jobs.kept_records[id], kind[BATCH] ~= '' and batches.get(kind[BATCH])
  local since = struct.unpack(TIME_FORMAT, packed, SINCE_AT)
  local arrival = struct.unpack(TIME_FORMAT, packed, SHORTEST_RECORD + #kind.label + #spec + 1)
  local row_name = record.lane_name(spec) .. SEP .. queue .. SEP
  local is_waiter = row_name .. record.near_rank(priority, arrival) .. SEP .. id == member
  if verb or not is_waiter or (b and b[B_PRIORITY] >= 0 and b[B_PRIORITY] ~= priority) then
    jobs.kept_records[id] = nil
    return show(id, member, jobs.read({ id })[1], verb)
  end
  local place = (transition.seq or tonumber(meta.seq or 0)) + 1
  transition.seq = place
  packed = record.shown_record(packed, READY_FRONT, place)
  jobs.rewritten[id] = packed
  writes.put(2, 'HSET', keys.jobs, id, packed)
  writes.put(3, 'ZREM', keys.held, member)
  writes.put(5, 'ZADD', keys.ready, '0', queue .. SEP .. record.near_rank(priority, place) .. SEP .. id)
  local row = lanes.row(lanes.of(spec), queue)
  row.waiting = row.waiting - 1
  lane_waiters.left(member, row_name)
  lanes.show(row, id, kind)
  counters.measure('lane', queue, request.now - since, 1)
  kind.shown = (kind.shown or 0) + 1
  return true
end

-- kind_or_header(id, packed) → of the job with this record: its kind, if it needs no header to be shown, or else
-- its header; nothing if the record is cut off. Only a kind has a `form`.
local function kind_or_header(id, packed)
  if string.sub(packed, 1, FRONT) ~= HELD_FRONT or record.has_rare_fields(packed) then
    return jobs.waiting_header(id, packed)
  end
  local kind, spec, to = record.form_in(packed)
  local size = struct.unpack(SIZE_FORMAT, packed, SIZE_AT)
  if not spec or not record.payload_fits(#packed - to, size) then return nil end
  spec_of[id] = spec
  return kind
end

-- add_next(lane, members, ids): adds the waiters that this lane shows next. If it waits for its rate, or if there are
-- enough of other lanes and queues, it says when it is to be looked at again.
local function add_next(lane, members, ids)
  for _, queue in ipairs(lanes.queues(lane)) do
    local row, next_members, tokens = lane.lines[queue], {}, nil
    if #members < MAX_SHOWN_AT_ONCE then
      next_members, tokens = lanes.next_waiters(lane, queue, lanes.MAX_SHOWN, lanes.MAX_SHOWN)
    elseif row.waiting > 0 and #row.shown == 0 and lanes.room(lane, row) > 0 then
      lanes.open_at(lane, request.now + NEXT_ROUND)
    end
    for _, member in ipairs(next_members) do
      members[#members + 1] = member
      ids[#ids + 1] = jobs.last_part(member)
    end
    if tokens and row.waiting > 0 then
      local ms = math.ceil((lanes.price(lane, tokens) - lane.tokens) / lane.rate)
      lanes.open_at(lane, request.now + math.max(ms, NEXT_ROUND))
    end
  end
end

-- show_next(names, verb): these lanes show their next waiters. If one was no waiter, there may be another one to show.
local function show_next(names, verb)
  local members, ids, all_were_waiters = {}, {}, true
  for _, name in ipairs(names) do add_next(lanes.named(name), members, ids) end
  local headers = jobs.read_waiting(ids, kind_or_header)
  for i, member in ipairs(members) do
    local h = headers[i]
    local show_one = h and h.form and show_of_kind or show
    all_were_waiters = show_one(ids[i], member, h, verb) and all_were_waiters
  end
  if not all_were_waiters then return show_next(names, verb) end
end

-- count_shown(): counts the waiters without a header that were shown.
local function count_shown()
  local became_ready = counters.became_ready
  for _, kind in ipairs(record.kinds) do
    local n = kind.shown or 0
    if n > 0 then
      local queue = kind[QUEUE]
      counters.add_to(counters.count_changes, 'held', queue, -n)
      became_ready[queue] = (became_ready[queue] or 0) + n
      kind.shown = 0
    end
  end
end

-- show_waiters(names, verb): these lanes show their next waiters, in this order. As far as it can, lib/locks.lua does
-- so for locks that were freed and follow each other. The event names what is shown if there is a verb.
function M.show_waiters(names, verb)
  local at, n_names = 1, #names
  while at <= n_names do
    local after = lanes.freed[names[at]] and locks.show_freed(names, at) or at
    if after == at then
      local others = {}
      repeat
        others[#others + 1] = names[after]
        after = after + 1
      until after > n_names or lanes.freed[names[after]]
      show_next(others, verb)
    end
    at = after
  end
  count_shown()
end

return M
