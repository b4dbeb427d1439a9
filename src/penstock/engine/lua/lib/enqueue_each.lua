-- Jobs one by one: all that enqueue is given but pages of plain jobs (lib/enqueue_plain.lua). Each is stored in one of two ways:
--   enter_simple: a job without rare fields that asks for at most one lane, which has a limit but no rate and no order
--   enter_any: every other job; also one that is there already

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local batches = require 'batches'
local create = require 'create'
local finish = require 'finish'
local grouped_moves = require 'grouped_moves'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local lane_waiters = require 'lane_waiters'
local lanes = require 'lanes'
local locks = require 'locks'
local queue_room = require 'queue_room'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

local ids, answers, raw, news, records, contents, places, rooms, admitted

local function answer(word, id, state)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = word, id, state
end

-- stored_as(id, front, form, payload, has_lane) → the record of a new job; a large payload is stored apart.
local function stored_as(id, front, form, payload, has_lane)
  if #payload >= INLINE then
    local n = contents.n
    contents[n + 1], contents[n + 2], contents.n = id, payload, n + 2
  end
  return record.new_record(front, transition.seq, form, payload, has_lane)
end

-- has_room(queue) → does it take one more job? Those that it says so of are counted; return_room(queue): one of them is not.
local function has_room(queue)
  local left = rooms[queue]
  if not left then
    create.known_queues[queue] = call('HGET', keys.queues, queue)
    left = queue_room.room_left(queue, create.known_queues[queue])
  end
  rooms[queue] = left - 1
  return left > 0
end

local function return_room(queue) rooms[queue] = rooms[queue] + 1 end

local function admit(id, kind, packed, state)
  local n, one = records.n, grouped_moves.event_of('enqueue', kind)
  local m = one[7] + 1
  records[n + 1], records[n + 2], records.n = id, packed, n + 2
  admitted[id] = kind
  kind.n, one[6][m], one[7] = kind.n + 1, id, m
  answer('created', id, state)
end

-- next_place() → the number of the last place in line.
local function next_place()
  transition.seq = (transition.seq or tonumber(meta.seq or 0)) + 1
  return transition.seq
end

-- line_up_plain(id, kind, payload): a job without a lane gets its place in line.
local function line_up_plain(id, kind, payload)
  local n = places.n
  places[n + 1], places[n + 2], places.n = '0', kind[QUEUE] .. SEP .. record.rank(kind[PRIORITY], next_place()) .. SEP .. id, n + 2
  admit(id, kind, stored_as(id, READY_FRONT, kind.form, payload), 'ready')
end

-- line_up_laned(id, one, payload) → is it shown or held by its lane? Not if that is more than limited, or shows one that would
-- have to step back.
local function line_up_laned(id, one, payload)
  local kind, spec, row = one.kind, one.spec, nil
  if #spec > LONGEST_LANE then return false end
  local state = locks.enter(spec, kind, id)
  local front = state == 'ready' and OWNER_FRONT or HELD_FRONT
  if not state then
    lanes.declare_all(one)
    local lane
    lane, row = grouped_moves.limited_lane(spec, kind[QUEUE])
    if not lane or row.worst > kind[PRIORITY] then return false end
    local is_shown = row.waiting == 0 and #row.shown < math.min(lanes.MAX_SHOWN, lane.limit - lane.use)
    state, front = is_shown and 'ready' or 'held', is_shown and READY_FRONT or HELD_FRONT
  end
  local turn = record.rank(kind[PRIORITY], next_place())
  local packed = stored_as(id, front, one.form, payload, true)
  if state == 'ready' then
    writes.add_later(keys.ready, '0', kind[QUEUE] .. SEP .. turn .. SEP .. id)
    if row then lanes.show(row, id, kind) end
  else
    local row_name = record.lane_name(spec) .. SEP .. kind[QUEUE] .. SEP
    local member = row_name .. turn .. SEP .. id
    writes.add_later(keys.held, '0', member)
    if row then
      row.waiting = row.waiting + 1
      lane_waiters.joined(member, row_name)
    end
    kind.waited = kind.waited + 1
  end
  jobs.rewritten[id] = packed
  admit(id, kind, packed, state)
  return true
end

-- told(given) → of jobs that come so, without a header: their kind, which has the priority that their batch wants; their lane, if
-- they have one, as those have that are in a batch; and how their records begin.
local function told(given)
  local kind, spec, _, rare = record.form_at(given, 0, 0)
  if rare > 0 or (spec and kind[BATCH] ~= '') then return nil end   -- a batch adds a lane
  local one = { [LANES] = { spec } }
  if kind[BATCH] ~= '' then
    one[BATCH], one[PRIORITY] = kind[BATCH], kind[PRIORITY]
    batches.apply_to(one)
    if one[PRIORITY] ~= kind[PRIORITY] then
      kind = record.kind_of((string.gsub(kind.label, '^([^\31]*\31)%d*', '%1' .. string.format('%02d', one[PRIORITY]))))
    end
  end
  one.kind, one.spec = kind, one[LANES][1]
  one.form = one.spec and record.form_with(kind.label, one.spec) or kind.form
  return one
end

-- enter_simple(i, one) → does a job of which this was told get its place without a header?
local function enter_simple(i, one)
  local id, payload, kind = ids[i], request.args[i * 3], one.kind
  if raw[i] or admitted[id] or jobs.decoded[id] then return false end
  if kind[BATCH] ~= '' then
    local b = batches.get(kind[BATCH])
    if batches.refusal(b) or b[B_CREATED] > request.now then return false end
  end
  if not has_room(kind[QUEUE]) then
    answer('full', id, '')
  elseif not one.spec then
    line_up_plain(id, kind, payload)
  elseif not line_up_laned(id, one, payload) then
    return_room(kind[QUEUE])
    return false
  elseif kind[BATCH] ~= '' then
    batches.join(batches.get(kind[BATCH]), id)
  end
  return true
end

-- enter_any(i): a job that has a header, needs one, or is there already.
local function enter_any(i)
  local id, new = ids[i], news[i]
  local h = jobs.decode_once(id, raw[i] or jobs.rewritten[id]) or jobs.decoded[id] or admitted[id]
  local word = h and (h[NONCE] == (new and new[NONCE] or '') and 'created' or 'exists')
  if jobs.unreadable[id] then
    word, h = 'exists', { [STATE] = 'unreadable' }   -- its payload is not overwritten; reconcile will bury it
  elseif not h and new[UNIQUE] ~= '' then
    id, h = create.unique_holder(new[UNIQUE])
    word = h and 'unique'
  end
  local refusal = not h and new[BATCH] ~= '' and batches.refusal(batches.get(new[BATCH]))
  if refusal then
    id, h, word = ids[i], { [STATE] = '' }, refusal
  elseif not h and not has_room(new[QUEUE]) then
    id, h, word = ids[i], new, 'full'
  elseif not h then
    id, h, word = ids[i], new, 'created'
    create.create('enqueue', id, h, request.args[i * 3])
  end
  answer(word, id, h[STATE])
end

function M.run()
  ids, answers = {}, {}
  for at = 1, request.argc, 3 do ids[#ids + 1] = request.args[at] end
  raw, news = call('HMGET', keys.jobs, unpack(ids)), {}
  records, contents, places = writes.command(2, 'HSET', keys.jobs), writes.command(1, 'HSET', keys.payloads), writes.command(5, 'ZADD', keys.ready)
  rooms = {}   -- queue → how many more it takes
  admitted = {}   -- id → its kind
  local given   -- what the one before came with
  local given_before = {}   -- what comes without a header → what that tells
  local without = {}   -- the same by position
  local asked = {}   -- headers, or what was told, that have lanes
  for i = 1, #ids do
    if request.args[i * 3 - 1] ~= '' then given = request.args[i * 3 - 1] end
    local one = given_before[given]
    if one == nil then
      one = told(given) or false
      given_before[given] = one
      if one then asked[#asked + 1] = one end
    end
    if one then
      without[i] = one
    else
      news[i] = record.new_header(given)
      if news[i][BATCH] ~= '' then
        batches.apply_to(news[i])
      end
      asked[#asked + 1] = news[i]
    end
  end
  lane_entry.fetch_lanes(asked, #asked)
  locks.hands_over = true
  for i = 1, #ids do
    local one = without[i]
    if not (one and enter_simple(i, one)) then
      if one then news[i] = record.header_for(one.kind, one.spec) end
      enter_any(i)
    end
  end
  for _, one in ipairs(record.kinds) do
    grouped_moves.move_kind(one, '', 'ready')
    create.count = create.count + one.n
    if one.n > 0 then create.queues[one[QUEUE]] = true end
  end
  if create.count > 0 then finish.write_created() end
  return answers
end

return M
