-- complete: running → done.
-- flags: allow-oom
-- keys: payloads results
-- kept: as a function
-- include: record mail label header write waiters lanes owners batches move alike line locks enter finish create ends settle
-- args: worker, then per job: id, call number, result ('' for nothing)
-- returns: per job: ok | stale
-- event: complete
local lease_calls = {}   -- call number → its claim, packed, when it started, and by kind what those it leased have in common
local glanced = {}       -- id → header of those that are as their lease left them
local alike = {}         -- what those of one kind and one call have in common

-- call_of(number, packed) → that call, if this is as it left it. Its fronts are how those without a header begin.
local function call_of(number, packed)
  local made = lease_calls[number]
  if not made then
    local claim = claim_of(number)
    local mark = cmsgpack.pack(claim)
    made = { claim = claim, mark = mark, length = #mark + 1, front = IS_BEGUN .. mark, laned_front = IS_BEGUN_LANED .. mark }
    if string.sub(packed, 2, made.length) ~= mark then return nil end
    made.started = struct.unpack('>I8', packed, made.length + 2)
    lease_calls[number] = made
  end
  return string.sub(packed, 2, made.length) == made.mark and made
end

-- of_call(made, kind) → what jobs of one kind that this call leased have in common.
local function of_call(made, kind)
  local found = made[kind]
  if not found then
    found = {
      n = 0, waited = 0, group = false, kept_until = digits(now + kind[KEEP]), [QUEUE] = kind[QUEUE], [TASK] = kind[TASK],
      [KEEP] = kind[KEEP], [BATCH] = kind[BATCH], [CLAIM] = made.claim, [STARTED] = made.started
    }
    made[kind], alike[#alike + 1] = found, found
  end
  return found
end

-- By how the result is kept (0: there is none, 1: under `results`, 2: not): what is put in front.
local marks = {}
for kept = 0, 2 do marks[kept] = IS_DONE .. struct.pack('>BI8B', 207, now, kept) end

-- kept_of(id, result, keep) → how it is kept.
local function kept_of(id, result, keep)
  if result == '' then return 0 end
  if keep == 0 then return 2 end
  store(results, id, result)
  return 1
end

-- By position, of those without a header that are as their call left them: id, record, kind, lane, how much is to be kept.
local ids, raw, kinds_of, specs, parts = {}, {}, {}, {}, {}
for at = 2, ARGC, 3 do ids[(at + 1) / 3] = ARGV[at] end
if #ids > 0 then raw = call('HMGET', jobs, unpack(ids)) end

-- begun_call(number, packed) → the call of this number, if it left this, and that had no header.
local function begun_call(number, packed)
  local first = string.byte(packed)
  if first ~= BEGUN and first ~= BEGUN_LANED then return nil end
  local fine, made = pcall(call_of, number, packed)
  return fine and made or nil
end

-- label_at(packed, at) → the kind of the job whose label begins there, that label, and how long it is; nothing if it is cut off.
local function label_at(packed, at)
  local fine, kind = pcall(kind_at, packed, at)
  if fine then return kind, kind.mark, #kind.mark end
end

-- recognise() → the names of their lanes. Members of a batch mostly have label and lane in common.
local function recognise()
  local names, n, sub, byte, find = {}, 0, string.sub, string.byte, string.find
  local kind, label, size, both, both_size, lane   -- of the last one; both: label and lane, of a batch that has this label
  for i = 1, #ids do
    local packed, number = raw[i] or '', ARGV[i * 3]
    local made = lease_calls[number] or begun_call(number, packed)
    local front, at, spec = made and sub(packed, 1, made.length)
    if not made then
      at = nil
    elseif front == made.front then
      at = made.length + 18
      if not label or sub(packed, at + 1, at + size) ~= label then
        kind, label, size, both = label_at(packed, at)
      end
      at = kind and at + size
    elseif front == made.laned_front then
      at = made.length + 36
      if both and sub(packed, at + 1, at + both_size) == both then
        spec = lane
        at = at + both_size
      else
        if not label or sub(packed, at + 1, at + size) ~= label then kind, label, size, both = label_at(packed, at) end
        local from, mark, length = at
        if kind then mark, length = byte(packed, at + size + 1, at + size + 2) end
        at = mark == 217 and length and at + size + 2 + length   -- no other text is written there
        if at then
          spec = sub(packed, from + size + 3, at)
          n = n + 1
          names[n] = find(spec, SEP, 1, true) and lane_name(spec) or spec
          if kind[BATCH] ~= '' then both, both_size, lane = sub(packed, from + 1, at), at - from, spec end
        end
      end
    end
    if at then
      local left, inside, within = #packed - at, byte(packed, at + 24, at + 25)   -- see is_inside
      if left == (inside == 192 and 24 or inside == 196 and within and within + 25) then
        kinds_of[i] = made[kind] or of_call(made, kind)
        specs[i] = spec
        parts[i] = at + 23
      end
    end
  end
  return names
end

-- recognise_all(): and reads their lanes.
local function recognise_all()
  local names = recognise()
  if #names == 0 then return end
  need_lanes()
  need_line()
  need_locks()
  fetch(names)
end

-- give_back(lane, n): so many slots of it are free again.
local function give_back(lane, n) lane.use = math.max(lane.use - n, 0) end

-- end_run(from, answers) → the position after those from here on that are of one kind and one call; these are done.
local records, holds, contents = pile(2, 'HSET', jobs), pile(3, 'ZREM', leases), pile(3, 'HDEL', payloads)
local slots, ends = pile(3, 'ZREM', holders), pile(5, 'ZADD', finished)
local seen = {}    -- id → true: it may be named twice in a page
local function end_run(from, answers)
  local kind, at, spec, lane, slot_head = kinds_of[from], from, nil, nil, nil
  local forms, taken = nil, 0
  local claim_head, keep, kept_until, one = kind[CLAIM] .. SEP, kind[KEEP], kind.kept_until, event_of('complete', kind)
  local told, a, b, c, d, before = one[6], records.n, holds.n, ends.n, one[7], #ended
  local e, f, without, sub = before, slots.n, marks[0], string.sub
  local to_store, to_keep, all_ended, all_kinds = records, ends, ended, kinds_of   -- locals are found at once
  repeat
    local id, packed, to = ids[at], raw[at], parts[at]
    answers[at] = 'ok'
    if not seen[id] then
      seen[id] = true
      if specs[at] ~= spec then
        if lane then give_back(lane, taken) end
        spec, lane, taken = specs[at], nil, 0
        forms = spec and lock_kit.forms(kind[QUEUE])
      end
      if spec and (lane or not lock_kit.free(spec, forms, id)) then   -- an owner is not in `holders`
        if not lane then
          lane = lane_of(spec)
          refill(lane)
          slot_head = lane.name .. SEP
        end
        if lane.unlisted == id then lane.unlisted = nil end
        taken = taken + 1
        f = f + 1
        slots[f] = slot_head .. id
      end
      if #packed == to + 1 then   -- its payload is not part of the record
        contents.n = contents.n + 1
        contents[contents.n] = id
      end
      local result = ARGV[at * 3 + 1]
      local mark = result == '' and without or marks[kept_of(id, result, keep)]
      a = a + 2
      to_store[a - 1] = id
      to_store[a] = mark .. sub(packed, 1, to) .. NOWHERE
      b = b + 1
      holds[b] = claim_head .. id
      c = c + 2
      to_keep[c - 1] = kept_until
      to_keep[c] = id
      d = d + 1
      told[d] = id
      e = e + 1
      all_ended[e] = id
    end
    at = at + 1
  until all_kinds[at] ~= kind
  if lane then give_back(lane, taken) end
  records.n, holds.n, ends.n, one[7], slots.n, kind.n = a, b, c, d, f, kind.n + e - before
  if kind[BATCH] ~= '' then
    need_batches()
    local batch = batch_kit.one(kind[BATCH])
    if batch then batch_kit.leave_all(batch, ended, before + 1, e, 'done') end
  end
  return at
end

-- as_leased(id, packed, number) → the first values of the header of a job that is as that lease call left it, as most are.
local function as_leased(id, packed, number)
  local made = string.sub(packed, 1, 1) == IS_RUNNING and call_of(number, packed)
  if not made then return nil end
  local h = glanced[id]
  if not h then
    h = listed(cmsgpack.unpack_limit(packed, HOT, made.length + 21))   -- lease has checked them
    h[STATE], h[CLAIM], h[STARTED], glanced[id] = 'running', made.claim, made.started, h
  end
  return h
end

-- end_with_header(id, h, at): one with a header is done.
local function end_with_header(id, h, at)
  local kept, packed = kept_of(id, ARGV[at], h[KEEP]), stored[id]
  erase(payloads, id)
  if packed then
    packed = marks[kept] .. packed
  else
    h[RESULT], h[REASON] = kept, ''
  end
  move('complete', id, h, 'done', nil, packed)
end

recognise_all()
local answers = settle_page('complete', 3, end_with_header, as_leased, kinds_of, end_run)
for _, kind in ipairs(alike) do move_kind(kind, 'running', 'done') end
if next(lanes_read) then need_locks() end
finish()
return answers
