-- enqueue: – → ready | held | scheduled | running. One job or a page of them; the same id, or a taken unique key, makes no second one.
-- flags: none (a full server refuses new jobs, and only those)
-- kept: as a function
-- include: record memo mail lacks room push plain header write waiters lanes owners batches move alike line locks enter finish create ends
-- few: plain (plain jobs mostly need no more than what is included so far, and so bring only the keys of that)
-- args: per job its id, its form (stored.pack; times below 10^12 are delays from now), empty if that is the same as
--       the one before it has, and its payload; then, if what was sent before may not be stored yet, the id of one of that
-- returns: nothing, if that is not stored, or more keys are needed; ready or running, if all of them were created and are that; else per job: created |
--          exists | unique | full, the id that holds, its state; or, if its batch does not take it: unknown | sealed |
--          cancelled | ended, its id and nothing
-- event: enqueue; lease for one that goes to a worker at once (lib/push.lua)
--
-- Jobs are stored in one of three ways, by what they are:
--   enter_plain (lib/plain.lua): 1 to 250 plain jobs of one label, and nothing else in the call
--   enter_simple: a job that says nothing rare and asks for at most one lane, which is only limited
--   enter_any: every other job; also one that is there already
local ids, answers = {}, {}
for at = 1, ARGC, 3 do ids[#ids + 1] = ARGV[at] end
local raw, news = call('HMGET', jobs, unpack(ids)), {}

local function answer(word, id, state)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = word, id, state
end

-- record(id, front, form, payload, has_lane) → that of a new job; a large payload goes elsewhere.
local records, contents, places = pile(2, 'HSET', jobs), pile(1, 'HSET', payloads), pile(5, 'ZADD', ready)
local function record(id, front, form, payload, has_lane)
  if #payload >= INLINE then
    local n = contents.n
    contents[n + 1], contents[n + 2], contents.n = id, payload, n + 2
  end
  return new_record(front, sequence, form, payload, has_lane)
end

-- has_room(queue) → does it take one more job? Those that it says so of are counted; return_room(queue): one of them is not.
local rooms = {}   -- queue → how many more it takes
local function has_room(queue)
  local left = rooms[queue]
  if not left then
    found_queues[queue] = call('HGET', queues, queue)
    left = room_in(queue, found_queues[queue])
  end
  rooms[queue] = left - 1
  return left > 0
end
local function return_room(queue) rooms[queue] = rooms[queue] + 1 end

local admitted = {}   -- id → its kind
local function admit(id, kind, packed, state)
  local n, one = records.n, event_of('enqueue', kind)
  local m = one[7] + 1
  records[n + 1], records[n + 2], records.n = id, packed, n + 2
  admitted[id] = kind
  kind.n, one[6][m], one[7] = kind.n + 1, id, m
  answer('created', id, state)
end

-- next_place() → the number of the last place in line.
local function next_place()
  sequence = (sequence or tonumber(seq_before or 0)) + 1
  return sequence
end

-- line_up_plain(id, kind, payload): a job without a lane gets its place in line.
local function line_up_plain(id, kind, payload)
  local n = places.n
  places[n + 1], places[n + 2], places.n = '0', kind[QUEUE] .. SEP .. rank_of(kind[PRIORITY], next_place()) .. SEP .. id, n + 2
  admit(id, kind, record(id, READY_FRONT, kind.form, payload), 'ready')
end

-- line_up_laned(id, one, payload) → is it shown or held by its lane? Not if that is more than limited, or shows one that would
-- have to step back.
local function line_up_laned(id, one, payload)
  local kind, spec, row = one.kind, one.spec, nil
  if #spec > LONGEST_LANE then return false end
  local state = lock_kit.enter(spec, kind, id)
  local front = state == 'ready' and OWNER_FRONT or HELD_FRONT
  if not state then
    announce(one)
    local lane
    lane, row = only_limited(spec, kind[QUEUE])
    if not lane or row.worst > kind[PRIORITY] then return false end
    local is_shown = row.waiting == 0 and #row.shown < math.min(AT_ONCE, lane.limit - lane.use)
    state, front = is_shown and 'ready' or 'held', is_shown and READY_FRONT or HELD_FRONT
  end
  local turn = rank_of(kind[PRIORITY], next_place())
  local packed = record(id, front, one.form, payload, true)
  if state == 'ready' then
    enter(ready, '0', kind[QUEUE] .. SEP .. turn .. SEP .. id)
    if row then show_in(row, id, kind) end
  else
    local row_name = lane_name(spec) .. SEP .. kind[QUEUE] .. SEP
    local member = row_name .. turn .. SEP .. id
    enter(held, '0', member)
    if row then
      row.waiting = row.waiting + 1
      joined(member, row_name)
    end
    kind.waited = kind.waited + 1
  end
  shown_as[id] = packed
  admit(id, kind, packed, state)
  return true
end

-- told(given) → of jobs that come so, without a header: their kind, which has the priority that their batch wants; their lane, if
-- they have one, as those have that are in a batch; and how their records begin.
local function told(given)
  local kind, spec, _, rare = form_at(given, 0, 0)
  if rare > 0 or (spec and kind[BATCH] ~= '') then return nil end   -- a batch adds a lane
  local one = { [LANES] = { spec } }
  if kind[BATCH] ~= '' then
    need_batches()
    one[BATCH], one[PRIORITY] = kind[BATCH], kind[PRIORITY]
    batch_kit.adopt(one)
    if one[PRIORITY] ~= kind[PRIORITY] then
      kind = kind_of((string.gsub(kind.label, '^([^\31]*\31)%d*', '%1' .. string.format('%02d', one[PRIORITY]))))
    end
  end
  one.kind, one.spec = kind, one[LANES][1]
  one.form = one.spec and form_with(kind.label, one.spec) or kind.form
  return one
end

-- enter_simple(i, one) → does a job of which this was told get its place without a header?
local function enter_simple(i, one)
  local id, payload, kind = ids[i], ARGV[i * 3], one.kind
  if raw[i] or admitted[id] or cache[id] then return false end
  if kind[BATCH] ~= '' then
    local b = batch_kit.one(kind[BATCH])
    if batch_kit.refusal(b) or b[B_CREATED] > now then return false end
  end
  if not has_room(kind[QUEUE]) then
    answer('full', id, '')
  elseif not one.spec then
    line_up_plain(id, kind, payload)
  elseif not line_up_laned(id, one, payload) then
    return_room(kind[QUEUE])
    return false
  elseif kind[BATCH] ~= '' then
    batch_kit.join(batch_kit.one(kind[BATCH]), id)
  end
  return true
end

-- enter_any(i): a job that has a header, needs one, or is there already.
local function enter_any(i)
  need_create()
  local id, new = ids[i], news[i]
  local h = known_as(id, raw[i] or shown_as[id]) or cache[id] or admitted[id]
  local word = h and (h[NONCE] == (new and new[NONCE] or '') and 'created' or 'exists')
  if spoilt[id] then
    word, h = 'exists', { [STATE] = 'unreadable' }   -- its payload is not overwritten; reconcile will bury it
  elseif not h and new[UNIQUE] ~= '' then
    id, h = holder(new[UNIQUE])
    word = h and 'unique'
  end
  local refusal = not h and new[BATCH] ~= '' and batch_kit.refusal(batch_kit.one(new[BATCH]))
  if refusal then
    id, h, word = ids[i], { [STATE] = '' }, refusal
  elseif not h and not has_room(new[QUEUE]) then
    id, h, word = ids[i], new, 'full'
  elseif not h then
    id, h, word = ids[i], new, 'created'
    create('enqueue', id, h, ARGV[i * 3])
  end
  answer(word, id, h[STATE])
end

local given               -- what the one before came with
local given_before = {}   -- what comes without a header → what that tells
local without = {}        -- the same by position
local asked = {}          -- headers, or what was told, that have lanes
for i = 1, #ids do
  if ARGV[i * 3 - 1] ~= '' then given = ARGV[i * 3 - 1] end
  local one = given_before[given]
  if one == nil then
    one = told(given) or false
    given_before[given] = one
    if one then asked[#asked + 1] = one end
  end
  if one then
    without[i] = one
  else
    news[i] = new_header(given)
    if news[i][BATCH] ~= '' then
      need_batches()
      batch_kit.adopt(news[i])
    end
    asked[#asked + 1] = news[i]
  end
end
meet(asked, #asked)
if next(lanes_read) then need_locks() end
for i = 1, #ids do
  local one = without[i]
  if not (one and enter_simple(i, one)) then
    if one then news[i] = header_for(one.kind, one.spec) end
    enter_any(i)
  end
end

for _, one in ipairs(kinds) do
  move_kind(one, '', 'ready')
  created = created + one.n
  if one.n > 0 then entered[one[QUEUE]] = true end
end
if created > 0 then accept() end
return answers
