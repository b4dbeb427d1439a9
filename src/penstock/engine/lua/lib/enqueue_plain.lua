-- Plain jobs: most calls of enqueue bring one, or a page of up to 250 with one label; new, without a lane or a batch, and nothing rare to
-- say. If their queue has room, this is all that happens to them, before anything is prepared for what other calls need: a third of
-- the work. Of one that is alone a worker without work gets it at once (lib/push.lua).

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

-- setting_of(queue) → what is set for it; '' where nothing was ever set for any.
local function setting_of(queue)
  if not meta.settings then return '' end
  return call('HGET', keys.queues, queue)
end

-- precede(label, number) → true if its queue had no entry in `heads`, so that its name may be unknown. It has one from now on, at this
-- place or before it; where the last such job was of the same queue and priority, `meta` tells that it still has.
local function precede(label, number)
  return meta.headed ~= label.line and call('ZADD', keys.heads, 'LT', label.first + number, label.queue) == 1
end

-- advance(label, n, number): the numbers in `meta` after n more jobs, and what precede() goes by.
local function advance(label, n, number)
  local accepted = (meta.accepted or 0) + n
  if meta.headed == label.line then
    call('HSET', keys.meta, 'accepted', accepted, 'seq', number)
  else
    call('HSET', keys.meta, 'accepted', accepted, 'seq', number, 'headed', label.line)
  end
end

-- are_alike() → does every job after the first say that it is like the one before it?
local function are_alike()
  for at = 5, request.argc, 3 do
    if request.args[at] ~= '' then return false end
  end
  return true
end

-- all_new(n) → their ids, if none of them is there, or named twice.
local function all_new(n)
  local ids, seen = {}, {}
  for i = 1, n do
    local id = request.args[i * 3 - 2]
    if seen[id] then return nil end
    ids[i], seen[id] = id, true
  end
  for _, found in ipairs(call('HMGET', keys.jobs, unpack(ids))) do
    if found then return nil end
  end
  return ids
end

-- store_contents(ids): the payloads that are too large for a record.
local function store_contents(ids)
  local contents, n = { 'HSET', keys.payloads }, 2
  for i, id in ipairs(ids) do
    local payload = request.args[i * 3]
    if #payload >= INLINE then
      contents[n + 1], contents[n + 2], n = id, payload, n + 2
    end
  end
  if n > 2 then call(unpack(contents, 1, n)) end
end

-- store_one(id, payload, form, number) → its id, once it is stored; nothing if it was there.
local function store_one(id, payload, form, number)
  if #payload >= INLINE then
    if call('HEXISTS', keys.jobs, id) == 1 then return nil end
    call('HSET', keys.payloads, id, payload)
  end
  return call('HSETNX', keys.jobs, id, record.new_record(READY_FRONT, number, form, payload)) == 1 and id or nil
end

-- store_page(form, n, before) → their ids, once they are stored behind that place; nothing if they differ, or one of them was there.
local function store_page(form, n, before)
  local ids, records = are_alike() and all_new(n), { 'HSET', keys.jobs }
  if not ids then return nil end
  record.new_records(records, ids, form, before)
  store_contents(ids)
  call(unpack(records, 1, n * 2 + 2))
  return ids
end

-- stand_in_line(ids, line, before): they stand in line behind that place. From one number to the next most of what is written is the same.
local function stand_in_line(ids, line, before)
  local places, pairs_by_byte, start = { 'ZADD', keys.ready }, hex_pairs, nil
  for i = 1, #ids do
    local number = before + i
    local low, at = number % 256, i * 2 + 2
    if low == 0 or not start then start = line .. string.format('%010x', (number - low) / 256) end
    places[at - 1] = '0'
    places[at] = start .. pairs_by_byte[low] .. SEP .. ids[i]
  end
  call(unpack(places, 1, #ids * 2 + 2))
end

-- enter() → the state that all jobs of this call are in now, or nothing if they are not plain. The first jobs of a minute make sure that
-- their queue is known.
function M.enter()
  if request.argc < 3 then return nil end
  local form, n = request.args[2], request.argc / 3
  local label = encode_cache.label_in(form)
  if not label then return nil end
  local queue, before, id, ids = label.queue, (meta.seq or 0) + 0, n == 1 and request.args[1], nil
  local setting = setting_of(queue)
  if setting ~= '' and queue_room.room_left(queue, setting) < n then return nil end
  if id and meta.asleep == '1' and (setting or '') == '' then   -- else it may be paused, or run no more than so many
    local worker = push.idle_worker(label, id, request.args[3])
    if worker then return push.push(worker, id, label, form, request.args[3], before + 1) end
  end
  if id then id = store_one(id, request.args[3], form, before + 1) else ids = store_page(form, n, before) end
  if not (id or ids) then return nil end
  local is_new = precede(label, before + 1)
  advance(label, n, before + n)
  if id then
    call('ZADD', keys.ready, '0', encode_cache.ready_member(label.line, before + 1, id))
  else
    stand_in_line(ids, label.line, before)
  end
  encode_cache.minute_prefix(label)
  local entered_now = call('HINCRBY', keys.stats, label.count, id and '1' or n)
  if entered_now == n or is_new or not setting then call('HSETNX', keys.queues, queue, '') end
  push.add_event(id and before + 1 or 0, 1, label.entered .. encode_cache.packed_text(id or table.concat(ids, SEP)))
  if meta.asleep == '1' then messages.wake_workers({ [queue] = n }) end
  return 'ready'
end

return M
