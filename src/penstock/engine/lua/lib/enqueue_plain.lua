-- The fast path of enqueue. Most calls bring plain jobs: one job, or a page of up to 250 with one label, which are new
-- and have no lane, batch or rare field. If their queue has room, this module does everything for them with a few
-- commands, without the modules that other jobs need; that is a third of the work. A plain job that is alone in its
-- call may go to an idle worker at once (lib/push.lua). `label` is that of lib/encode_cache.lua, and `setting` the
-- value of the queue in `queues`.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local encode_cache = require 'encode_cache'
local messages = require 'messages'
local push = require 'push'
local queue_room = require 'queue_room'
local call = request.call
local hex_pairs = record.hex_pairs

local M = {}

-- setting_of(queue) → its setting: false if its name is not known, '' if nothing is set for it, or for any queue.
local function setting_of(queue)
  if not meta.settings then return '' end
  return call('HGET', keys.queues, queue)
end

-- lower_head(label, number) → true if the queue had no entry in `heads`: then its name may be unknown. It has one
-- from now on, at this place or before it. If `meta` says that it has one already, nothing is written.
local function lower_head(label, number)
  if meta.headed == label.line_start then return false end
  return call('ZADD', keys.heads, 'LT', label.line_score + number, label.queue) == 1
end

-- update_meta(label, n, number): n more jobs were accepted, up to this place in line, and `heads` has an entry for
-- their line.
local function update_meta(label, n, number)
  local accepted = (meta.accepted or 0) + n
  if meta.headed == label.line_start then
    call('HSET', keys.meta, 'accepted', accepted, 'seq', number)
  else
    call('HSET', keys.meta, 'accepted', accepted, 'seq', number, 'headed', label.line_start)
  end
end

-- report(label, setting, n, number, is_new_head, ids): counts n jobs as enqueued, makes the name of their queue known,
-- adds the event with these ids (number: see push.add_event), and wakes workers. The first jobs of each minute write
-- the name even if it seems to be known.
local function report(label, setting, n, number, is_new_head, ids)
  encode_cache.minute_prefix(label)
  local n_enqueued = call('HINCRBY', keys.stats, label.enqueue_field, n == 1 and '1' or n)
  if n_enqueued == n or is_new_head or not setting then call('HSETNX', keys.queues, label.queue, '') end
  push.add_event(number, 1, label.enqueue_event .. encode_cache.packed_text(ids))
  if meta.asleep == '1' then messages.wake_workers({ [label.queue] = n }) end
end

-- One job.

-- store_job(id, payload, form, number) → true; false if the id is taken.
local function store_job(id, payload, form, number)
  if #payload >= INLINE then
    if call('HEXISTS', keys.jobs, id) == 1 then return false end
    call('HSET', keys.payloads, id, payload)
  end
  return call('HSETNX', keys.jobs, id, record.new_record(READY_FRONT, number, form, payload)) == 1
end

-- enter_job(label, setting, form, number) → the state of the only job of this call; nothing if its id is taken.
local function enter_job(label, setting, form, number)
  local id, payload = request.args[1], request.args[3]
  if meta.asleep == '1' and (setting or '') == '' then   -- a setting may be a pause, or a limit of running jobs
    local worker = push.idle_worker(label, id, payload)
    if worker then return push.push(worker, id, label, form, payload, number) end
  end
  if not store_job(id, payload, form, number) then return nil end
  local is_new_head = lower_head(label, number)
  update_meta(label, 1, number)
  call('ZADD', keys.ready, '0', encode_cache.ready_member(label.line_start, number, id))
  report(label, setting, 1, number, is_new_head, id)
  return 'ready'
end

-- A page of jobs.

-- have_one_form() → is the form of every job the same as that of the job before it?
local function have_one_form()
  for at = 5, request.argc, 3 do
    if request.args[at] ~= '' then return false end
  end
  return true
end

-- new_ids(n) → the ids of the jobs; nothing if one of them is taken, or named twice.
local function new_ids(n)
  local ids, seen = {}, {}
  for i = 1, n do
    local id = request.args[i * 3 - 2]
    if seen[id] then return nil end
    ids[i] = id
    seen[id] = true
  end
  for _, raw in ipairs(call('HMGET', keys.jobs, unpack(ids))) do
    if raw then return nil end
  end
  return ids
end

-- store_large_payloads(ids): stores the payloads that are too large for a record.
local function store_large_payloads(ids)
  local command, n = { 'HSET', keys.payloads }, 2
  for i, id in ipairs(ids) do
    local payload = request.args[i * 3]
    if #payload >= INLINE then
      command[n + 1] = id
      command[n + 2] = payload
      n = n + 2
    end
  end
  if n > 2 then call(unpack(command, 1, n)) end
end

-- store_page(form, n, before) → the ids of these jobs, whose places in line come after `before`; nothing if they do
-- not have one form, or an id is taken.
local function store_page(form, n, before)
  local ids = have_one_form() and new_ids(n)
  if not ids then return nil end
  local command = { 'HSET', keys.jobs }
  record.new_records(command, ids, form, before)
  store_large_payloads(ids)
  call(unpack(command, 1, n * 2 + 2))
  return ids
end

-- add_to_line(ids, line_start, before): the jobs enter the line, after `before`. From one place to the next mostly
-- only the last two digits differ.
local function add_to_line(ids, line_start, before)
  local command, hex, start = { 'ZADD', keys.ready }, hex_pairs, nil
  for i = 1, #ids do
    local number = before + i
    local low, at = number % 256, i * 2 + 2
    if low == 0 or not start then start = line_start .. string.format('%010x', (number - low) / 256) end
    command[at - 1] = '0'
    command[at] = start .. hex[low] .. SEP .. ids[i]
  end
  call(unpack(command, 1, #ids * 2 + 2))
end

-- enter_page(label, setting, form, n, before) → the state of all n jobs of this call; nothing if they are not plain.
local function enter_page(label, setting, form, n, before)
  local ids = store_page(form, n, before)
  if not ids then return nil end
  local is_new_head = lower_head(label, before + 1)
  update_meta(label, n, before + n)
  add_to_line(ids, label.line_start, before)
  report(label, setting, n, 0, is_new_head, table.concat(ids, SEP))
  return 'ready'
end

-- enter() → the state of all jobs of this call; nothing if they are not plain, or their queue has no room for all.
function M.enter()
  if request.argc < 3 then return nil end
  local form, n = request.args[2], request.argc / 3
  local label = encode_cache.label_in(form)
  if not label then return nil end
  local setting = setting_of(label.queue)
  if setting ~= '' and queue_room.room_left(label.queue, setting) < n then return nil end
  local before = (meta.seq or 0) + 0   -- the last place in line
  if n == 1 then return enter_job(label, setting, form, before + 1) end
  return enter_page(label, setting, form, n, before)
end

return M
