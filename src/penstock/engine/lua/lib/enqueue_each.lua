-- Enqueue of all jobs that do not take the fast path (lib/enqueue_plain.lua), one by one. Each is stored in one of two
-- ways:
--   enter_simple: a job without rare fields and with at most one lane, which has a limit but neither rate nor order
--   enter_any: every other job; also one whose id is taken
-- All simple jobs that come in the same form share a template. It has the `kind`, the `spec` of their lane (or
-- nothing) and the `form` that is stored. It has as much of a header as batches and lanes ask for: LANES, BATCH and
-- PRIORITY. `h` is a header, `b` a batch.

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

local ids, raw, templates, headers, answers, room_left, admitted, records, payloads, line

function M.reset()
  ids = {}         -- position → id
  raw = {}         -- position → what is stored under this id
  templates = {}   -- position → template of a simple job
  headers = {}     -- position → header of another job
  answers = {}
  room_left = {}   -- queue → how many more jobs it takes
  admitted = {}    -- id → kind of a simple job that was created
  -- Pending writes.
  records = writes.command(2, 'HSET', keys.jobs)
  payloads = writes.command(1, 'HSET', keys.payloads)
  line = writes.command(5, 'ZADD', keys.ready)
end

-- add_answer(word, id, state): the answer of the next job.
local function add_answer(word, id, state)
  local n = #answers
  answers[n + 1] = word
  answers[n + 2] = id
  answers[n + 3] = state
end

-- take_room(queue) → has this queue room for one more job? The room is taken then.
local function take_room(queue)
  local left = room_left[queue]
  if not left then
    create.known_queues[queue] = call('HGET', keys.queues, queue)
    left = queue_room.room_left(queue, create.known_queues[queue])
  end
  room_left[queue] = left - 1
  return left > 0
end

-- return_room(queue): the job that took room in this queue is not created.
local function return_room(queue) room_left[queue] = room_left[queue] + 1 end

-- next_place() → the next place in line.
local function next_place()
  transition.seq = (transition.seq or tonumber(meta.seq or 0)) + 1
  return transition.seq
end

-- new_record(id, front, form, payload, has_lane) → the record of a simple job in the last place. A large payload is
-- stored apart.
local function new_record(id, front, form, payload, has_lane)
  if #payload >= INLINE then
    local n = payloads.n
    payloads[n + 1] = id
    payloads[n + 2] = payload
    payloads.n = n + 2
  end
  return record.new_record(front, transition.seq, form, payload, has_lane)
end

-- admit(id, kind, packed, state): a simple job is created, with this record.
local function admit(id, kind, packed, state)
  local n = records.n
  records[n + 1] = id
  records[n + 2] = packed
  records.n = n + 2
  local event = grouped_moves.event_of('enqueue', kind)   -- ids in [6], how many in [7]
  local n_ids = event[7] + 1
  event[6][n_ids] = id
  event[7] = n_ids
  kind.n = kind.n + 1
  admitted[id] = kind
  add_answer('created', id, state)
end

-- enter_line(id, kind, payload): creates a simple job without a lane.
local function enter_line(id, kind, payload)
  local n = line.n
  line[n + 1] = '0'
  line[n + 2] = kind[QUEUE] .. SEP .. record.rank(kind[PRIORITY], next_place()) .. SEP .. id
  line.n = n + 2
  admit(id, kind, new_record(id, READY_FRONT, kind.form, payload), 'ready')
end

-- enter_lane(id, template, payload) → was a simple job created, which its lane shows or holds? Not if the lane has
-- more than a limit, or shows a job that would have to step back for this one.
local function enter_lane(id, template, payload)
  local kind, spec, row = template.kind, template.spec, nil
  if #spec > LONGEST_LANE then return false end
  local queue = kind[QUEUE]
  local state = locks.enter(spec, kind, id)
  local front = state == 'ready' and OWNER_FRONT or HELD_FRONT
  if not state then
    lanes.declare_all(template)
    local lane
    lane, row = grouped_moves.limited_lane(spec, queue)
    if not lane or row.worst > kind[PRIORITY] then return false end
    local is_shown = row.waiting == 0 and #row.shown < math.min(lanes.MAX_SHOWN, lane.limit - lane.use)
    state = is_shown and 'ready' or 'held'
    front = is_shown and READY_FRONT or HELD_FRONT
  end
  local rank = record.rank(kind[PRIORITY], next_place())
  local packed = new_record(id, front, template.form, payload, true)
  if state == 'ready' then
    writes.add_later(keys.ready, '0', queue .. SEP .. rank .. SEP .. id)
    if row then lanes.show(row, id, kind) end
  else
    local row_name = record.lane_name(spec) .. SEP .. queue .. SEP
    local member = row_name .. rank .. SEP .. id
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

-- enter_simple(i, template) → was this job created without a header, or refused because its queue is full?
local function enter_simple(i, template)
  local id, payload, kind = ids[i], request.args[i * 3], template.kind
  if raw[i] or admitted[id] or jobs.decoded[id] then return false end
  local b = kind[BATCH] ~= '' and batches.get(kind[BATCH])
  if kind[BATCH] ~= '' and (batches.refusal(b) or b[B_CREATED] > request.now) then return false end
  if not take_room(kind[QUEUE]) then
    add_answer('full', id, '')
    return true
  end
  if not template.spec then
    enter_line(id, kind, payload)
  elseif not enter_lane(id, template, payload) then
    return_room(kind[QUEUE])
    return false
  elseif b then
    batches.join(b, id)
  end
  return true
end

-- enter_any(i): creates this job with its header, or says why not.
local function enter_any(i)
  local id, new = ids[i], headers[i]
  local h = jobs.decode_once(id, raw[i] or jobs.rewritten[id]) or jobs.decoded[id] or admitted[id]
  -- The payload of a record that cannot be read is not overwritten: reconcile will bury that job with it.
  if jobs.unreadable[id] then return add_answer('exists', id, 'unreadable') end
  if h then
    -- With the same nonce it is the same job: this call was sent again.
    return add_answer(h[NONCE] == new[NONCE] and 'created' or 'exists', id, h[STATE])
  end
  if new[UNIQUE] ~= '' then
    local holder_id, holder = create.unique_holder(new[UNIQUE])
    if holder then return add_answer('unique', holder_id, holder[STATE]) end
  end
  local refusal = new[BATCH] ~= '' and batches.refusal(batches.get(new[BATCH]))
  if refusal then return add_answer(refusal, id, '') end
  if not take_room(new[QUEUE]) then return add_answer('full', id, '') end
  create.create('enqueue', id, new, request.args[i * 3])
  add_answer('created', id, new[STATE])
end

-- template_of(form) → the template of jobs with this form; nothing if they are not simple. A batch may set another
-- priority, and adds a lane to those of the job.
local function template_of(form)
  local kind, spec, _, rare_size = record.form_at(form, 0, 0)
  if rare_size > 0 or (spec and kind[BATCH] ~= '') then return nil end
  local template = { [LANES] = { spec } }
  if kind[BATCH] ~= '' then
    template[BATCH], template[PRIORITY] = kind[BATCH], kind[PRIORITY]
    batches.apply_to(template)
    if template[PRIORITY] ~= kind[PRIORITY] then
      local priority = string.format('%02d', template[PRIORITY])
      kind = record.kind_of((string.gsub(kind.label, '^([^\31]*\31)%d*', '%1' .. priority)))
    end
  end
  spec = template[LANES][1]
  template.kind, template.spec = kind, spec
  template.form = spec and record.form_with(kind.label, spec) or kind.form
  return template
end

-- read_forms() → the templates and headers of this call, in one list.
local function read_forms()
  local all = {}
  local known = {}   -- form → template, or false
  local form         -- of the previous job
  for i = 1, #ids do
    local new_form = request.args[i * 3 - 1]
    if new_form ~= '' then form = new_form end
    local template = known[form]
    if template == nil then
      template = template_of(form) or false
      known[form] = template
      if template then all[#all + 1] = template end
    end
    if template then
      templates[i] = template
    else
      local h = record.new_header(form)
      if h[BATCH] ~= '' then batches.apply_to(h) end
      headers[i] = h
      all[#all + 1] = h
    end
  end
  return all
end

-- count_simple(): counts the simple jobs that were created, by kind.
local function count_simple()
  for _, kind in ipairs(record.kinds) do
    grouped_moves.move_kind(kind, '', 'ready')
    create.count = create.count + kind.n
    if kind.n > 0 then create.queues[kind[QUEUE]] = true end
  end
end

function M.run()
  for at = 1, request.argc, 3 do ids[#ids + 1] = request.args[at] end
  raw = call('HMGET', keys.jobs, unpack(ids))
  local all = read_forms()
  lane_entry.fetch_lanes(all, #all)
  locks.hands_over = true
  for i = 1, #ids do
    local template = templates[i]
    if not (template and enter_simple(i, template)) then
      if template then headers[i] = record.header_for(template.kind, template.spec) end
      enter_any(i)
    end
  end
  count_simple()
  if create.count > 0 then finish.write_created() end
  return answers
end

return M
