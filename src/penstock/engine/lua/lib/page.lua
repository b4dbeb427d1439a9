-- A page of jobs alike, as enqueue_many brings them: all of them new, with one label, without a lane or a batch, for a queue that
-- has room for them. As with a single one (lib/single.lua), this is all that happens to them.
-- keys: jobs ready heads payloads queues stats events

-- are_alike() → does every job after the first say that it is like the one before it?
local function are_alike()
  for at = 5, ARGC, 3 do
    if ARGV[at] ~= '' then return false end
  end
  return true
end

-- all_new(n) → their ids, if none of them is there, or named twice.
local function all_new(n)
  local ids, seen = {}, {}
  for i = 1, n do
    local id = ARGV[i * 3 - 2]
    if seen[id] then return nil end
    ids[i], seen[id] = id, true
  end
  for _, found in ipairs(call('HMGET', jobs, unpack(ids))) do
    if found then return nil end
  end
  return ids
end

-- store_contents(ids): the payloads that are too large for a record.
local function store_contents(ids)
  local contents, n = { 'HSET', payloads }, 2
  for i, id in ipairs(ids) do
    local payload = ARGV[i * 3]
    if #payload >= 256 then
      contents[n + 1], contents[n + 2], n = id, payload, n + 2
    end
  end
  if n > 2 then call(unpack(contents, 1, n)) end
end

-- with_places(ids, mark, line, before) → their records, and their members of `ready`, as the arguments of a command each. From one
-- number to the next most of what is written is the same, so it is written once: what record_of and rank_of would give.
local function with_places(ids, mark, line, before)
  local records, places = { 'HSET', jobs }, { 'ZADD', ready }
  local by_size, start, place = {}, nil, nil
  for i = 1, #ids do
    local id, payload, number = ids[i], ARGV[i * 3], before + i
    local low, size = number % 256, #payload
    if low == 0 or not start then
      start = mark .. string.sub(struct.pack('>BI8', 207, number), 1, 8)
      place = line .. string.format('%010x', (number - low) / 256)
    end
    local middle = by_size[size]
    if not middle then
      middle = struct.pack('>BI8BI4', 207, now, 206, size) .. (size < 256 and string.char(196, size) or NOWHERE)
      by_size[size] = middle
    end
    local at = i * 2
    records[at + 1], records[at + 2] = id, start .. string.char(low) .. middle .. (size < 256 and payload or '')
    places[at + 1], places[at + 2] = '0', place .. (pairs_of[low] or pairs_of.new(low)) .. SEP .. id
  end
  return records, places
end

-- enter_page(mark, n) → the answer, or nothing if it is not such a page.
local function enter_page(mark, n)
  local label = label_in(mark)
  local setting = label and setting_of(label.queue)
  if not label or not are_alike() or room_in(label.queue, setting) < n then return nil end
  local ids = all_new(n)
  if not ids then return nil end
  local queue, before = label.queue, tonumber(seq_before or 0)
  local records, places = with_places(ids, mark, label.line, before)
  store_contents(ids)
  call(unpack(records, 1, n * 2 + 2))
  local is_new = precede(label, before + 1)
  advance(label, n, before + n)
  call(unpack(places, 1, n * 2 + 2))
  minute_of(label)
  if call('HINCRBY', stats, label.count, n) == n or is_new or not setting then call('HSETNX', queues, queue, '') end
  call('XADD', events, 'MAXLEN', '~', EVENTS, '*', 'e', entry_of(1, label.entered .. cmsgpack.pack(table.concat(ids, SEP))))
  wake_any({ [queue] = n })
  return 'ready'
end

local page = ARGC > 3 and string.byte(ARGV[2]) == PLAIN and enter_page(ARGV[2], ARGC / 3)
if page then return page end

-- Who thought that this would do has brought no more keys than so far, and is asked for all of them.
if not held then return {} end
