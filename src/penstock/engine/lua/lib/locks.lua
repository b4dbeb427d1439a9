-- Locks that one queue uses, as most are. Such a lock belongs to the job that it shows, from when that is shown until it has run,
-- so that lease need not look at the lock at all. What is stored of the lock is what any lane would store that shows this job,
-- but -1 for how many are in use, and how many wait in five bytes; what is stored of the job begins with IS_OWNER instead of
-- IS_SHOWN. Here it is read and written as text. Whoever else has to do with it takes it apart (lane_apart in lib/lanes.lua): then
-- it is like any other lane, until enqueue or complete shows a job of it anew.

-- on demand: need_locks

-- enter(name, kind, id) → ready or held: what becomes of a new job without a header that asks for this lock. Nothing if that is
-- for others to say: it is another lane, or another queue uses it, or the job would come before the owner.
function lock_kit.enter(name, kind, id)
  local priority, text = kind[PRIORITY], lane_texts[name]
  if priority > 99 or kind[BATCH] ~= '' or #id > 31 or known_lanes[name] or lane_name(name) ~= name then return nil end
  local forms = lock_kit.forms(kind[QUEUE])
  if text == nil then text = lanes_read[name] end
  if not text then
    lane_texts[name] = lock_kit.start_of(forms, 0) .. lock_kit.owner_mark(priority, id) .. id
    return 'ready'
  end
  if #text < forms.at + 6 or string.sub(text, 1, forms.at) ~= forms.head then return nil end
  if string.byte(text, forms.at + 5) > priority then return nil end
  lane_texts[name] = lock_kit.start_of(forms, struct.unpack('>I4', text, forms.at + 1) + 1) .. string.sub(text, forms.at + 5)
  return 'held'
end

-- free(name, forms, mark, id) → was this job the owner? The lock is free, and will show its next waiter. The mark comes before id.
function lock_kit.free(name, forms, mark, id)
  local text = lanes_read[name]
  if not text or #text ~= forms.at + 6 + #id or lane_texts[name] ~= nil or freed[name] then return false end
  local n = struct.unpack('>I4', text, forms.at + 1)
  if text ~= (forms[n] or lock_kit.start_of(forms, n)) .. mark .. id then return false end
  if n == 0 then
    lane_texts[name] = false
  else
    freed[name] = forms
    refills[#refills + 1] = name
  end
  return true
end

-- next_of_freed(names, from) → the next waiters of locks that were freed, from this one on: as members of `held`, as far as their
-- ranks, and as ids.
local function next_of_freed(names, from)
  local members, starts, ids, n, sub = {}, {}, {}, 0, string.sub
  for i = from, math.min(#names, from + 499) do
    local name = names[i]
    local forms = freed[name]
    if not forms then break end
    local start = name .. SEP .. forms.queue .. SEP
    local member = call('ZRANGEBYLEX', held, '[' .. start, '+', 'LIMIT', '0', '1')[1]   -- one of another row is not recognised
    if not member then break end
    n = n + 1
    members[n] = member
    starts[n] = start
    ids[n] = sub(member, #start + 16)
  end
  return members, starts, ids
end

-- recognised(names, from, members, starts, ids, raw) → the kinds of those of them that have no header and ask for that lock alone,
-- up to the first of which anything is not as it should be.
local function recognised(names, from, members, starts, ids, raw)
  local kinds_of, sub, numbers = {}, string.sub, struct.unpack
  local kind, mark, length, block, start
  for i = 1, #ids do
    local packed, id, name = raw[i], ids[i], names[from + i - 1]
    if not packed or sub(packed, 1, 2) ~= IS_HELD or cache[id] or #id > 31 then break end
    if not mark or sub(packed, 21, length) ~= mark then
      kind = kind_at(packed, 20)
      mark, block = kind.mark, nil
      length = #mark + 20
    end
    local at, number = length + 2 + #name, numbers('>I8', packed, 13)   -- that is after the lane, if it is the same
    local low = number % 256
    if number - low ~= block then
      block, start = number - low, sub(rank_of(kind[PRIORITY], number), 1, -3)
    end
    if sub(packed, length + 3, at) ~= name or kind[QUEUE] ~= freed[name].queue or is_inside(packed, at + 23) == nil
      or starts[i] .. start .. sub(PAIRS, low * 2 + 1, low * 2 + 2) .. SEP .. id ~= members[i] then break end
    kinds_of[i] = kind
  end
  return kinds_of
end

-- show_freed(names, from) → the position after those locks, from this one on, that were freed and show their next waiters now:
-- at the tail of their line, so that lanes take turns. From one to the next little of what is written differs.
function lock_kit.show_freed(names, from)
  local members, starts, ids = next_of_freed(names, from)
  if #ids == 0 then return from end
  local raw = call('HMGET', jobs, unpack(ids))
  local fine, kinds_of = pcall(recognised, names, from, members, starts, ids, raw)
  if not fine or #kinds_of == 0 then return from end
  local records, exits, places = pile(2, 'HSET', jobs), pile(3, 'ZREM', held), pile(5, 'ZADD', ready)
  local a, b, c, sub, char, numbers = records.n, exits.n, places.n, string.sub, string.char, struct.unpack
  local number, last, forms, mark, size, times, line_head, front = sequence or tonumber(seq_before or 0)
  for i = 1, #kinds_of do
    local id, packed, kind, name = ids[i], raw[i], kinds_of[i], names[from + i - 1]
    number = number + 1
    local low = number % 256
    if kind ~= last or low == 0 then
      front = IS_OWNER .. sub(struct.pack('>BI8BI8', 207, now, 207, number), 1, 17)
      line_head = kind[QUEUE] .. SEP .. sub(rank_of(kind[PRIORITY], number), 1, -3)
      last, forms, times, mark = kind, freed[name], times_of(kind[QUEUE], 'lane'), nil
    end
    if not mark or #id ~= size then mark, size = lock_kit.owner_mark(kind[PRIORITY], id), #id end
    local waited, left = now - numbers('>I8', packed, 4), numbers('>I4', lanes_read[name], forms.at + 1) - 1
    a = a + 2
    records[a - 1] = id
    records[a] = front .. char(low) .. sub(packed, 21)
    b = b + 1
    exits[b] = members[i]
    c = c + 2
    places[c - 1] = '0'
    places[c] = line_head .. sub(PAIRS, low * 2 + 1, low * 2 + 2) .. SEP .. id
    lane_texts[name] = (forms[left] or lock_kit.start_of(forms, left)) .. mark .. id
    freed[name] = nil
    times[waited] = (times[waited] or 0) + 1
    kind.shown = (kind.shown or 0) + 1
  end
  sequence, records.n, exits.n, places.n = number, a, b, c
  return from + #kinds_of
end

-- only_row(lane) → the one queue that it shows or holds jobs of, and these. Nothing if there is none, or another.
local function only_row(lane)
  local found, used
  for queue, row in pairs(lane.lines) do
    if row.waiting > 0 or row.shown[1] then
      if found then return nil end
      found, used = queue, row
    end
  end
  return found, used
end

-- handed_over(lane) → what is stored of a lock that is free and shows a job without a header since this call: it is the owner.
function lock_kit.handed_over(lane)
  if lane.rest ~= '' or lane.declared ~= '' or lane.set >= 0 or lane.paused or lane.use ~= 0 then return nil end
  local queue, row = only_row(lane)
  local id = row and not row.shown[2] and row.shown[1]
  local packed = id and #id <= 31 and not cache[id] and shown_as[id]
  if not packed or string.sub(packed, 1, 2) ~= IS_SHOWN then return nil end
  local kind = kind_at(packed, 20)
  if text_at(packed, 20 + #kind.mark) ~= lane.name or kind[QUEUE] ~= queue or kind[PRIORITY] > 99 then return nil end
  put(2, 'HSET', jobs, id, IS_OWNER .. string.sub(packed, 3))
  return lock_kit.start_of(lock_kit.forms(queue), row.waiting) .. lock_kit.owner_mark(kind[PRIORITY], id) .. id
end
