-- complete: running → done.
-- flags: allow-oom
-- keys: payloads results
-- kept: as a function
-- include: record mail header write waiters lanes owners batches move alike line locks enter finish create ends settle
-- args: worker, then per job: id, call number, result ('' for nothing)
-- returns: per job: ok | stale
-- event: complete
local lease_calls = {}   -- call number → its claim, packed, when it started, and by kind what those it leased have in common
local glanced = {}       -- id → header of those that are as their lease left them
local alike = {}         -- what those of one kind and one call have in common

-- call_of(number, packed) → that call, if this is as it left it.
local function call_of(number, packed)
  local made = lease_calls[number]
  if not made then
    local claim = claim_of(number)
    made = { claim = claim, front = running_front(claim), to = HEAD_SIZE + RUN_SIZE + #claim }
    if string.sub(packed, CLAIM_AT, made.to) ~= claim then return nil end
    made.started = struct.unpack(TIME_FORMAT, packed, RUN_AT)
    lease_calls[number] = made
  end
  return string.sub(packed, 1, FRONT) == made.front and string.sub(packed, CLAIM_AT, made.to) == made.claim and made
end

-- of_call(made, kind) → what jobs of one kind that this call leased have in common.
local function of_call(made, kind)
  local found = made[kind]
  if not found then
    found = { n = 0, waited = 0, group = false, kept_until = digits(now + kind[KEEP]), unpack(kind, 1, FIELDS) }
    found[CLAIM], found[STARTED] = made.claim, made.started
    made[kind], alike[#alike + 1] = found, found
  end
  return found
end

-- done_front(kept, run) → how the record begins of one that is done now, whose RUN has this size, and whose result is kept so (0: there
-- is none, 1: under `results`, 2: not).
local done_fronts, packed_now = {}, struct.pack(TIME_FORMAT, now)
local function done_front(kept, run)
  local n = run * 3 + kept
  local front = done_fronts[n]
  if not front then
    front = IS_DONE .. string.char(kept * RESULT_FLAG, run) .. packed_now
    done_fronts[n] = front
  end
  return front
end

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

-- recognise() → the names of their lanes. Members of a batch mostly have label and lane in common.
local function recognise()
  local names, n, sub, numbers = {}, 0, string.sub, struct.unpack
  local kind, label, form, form_size, spec = nil, nil, nil, 0, nil   -- of the last one
  for i = 1, #ids do
    local packed, number = raw[i] or '', ARGV[i * 3]
    local made = call_of(number, packed)
    local at = made and made.to + BODY_SIZE
    local to = at and at + form_size + (spec and ARRIVAL_SIZE or 0)   -- where its form ends; nothing if it says anything rare
    if made and (not form or sub(packed, at + 1, at + form_size) ~= form) then
      to = nil
      local label_size, lane_size, rare_size
      if #packed >= at + FORM_SIZE then label_size, lane_size, rare_size = numbers(FORM_FORMAT, packed, at + 1) end
      if rare_size == 0 then
        local lane_at = at + FORM_SIZE + label_size
        local text = sub(packed, at + FORM_SIZE + 1, lane_at)
        local form_to = lane_at + lane_size
        to, form, spec = form_to, nil, nil
        if text ~= label then kind, label = known_kind(text), text end
        if lane_size > 0 then
          spec, to = sub(packed, lane_at + 1, form_to), form_to + ARRIVAL_SIZE
          n = n + 1
          names[n] = lane_name(spec)
        end
        if kind and (not spec or kind[BATCH] ~= '') then form, form_size = sub(packed, at + 1, form_to), form_to - at end
      end
    end
    if to and kind and fits(#packed - to, numbers(SIZE_FORMAT, packed, made.to + 1)) then
      kinds_of[i] = made[kind] or of_call(made, kind)
      specs[i] = spec
      parts[i] = to
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
  local e, f, without, sub = before, slots.n, done_front(0, RUN_SIZE + #kind[CLAIM]), string.sub
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
      if #packed == to then   -- its payload is not part of the record
        contents.n = contents.n + 1
        contents[contents.n] = id
      end
      local result = ARGV[at * 3 + 1]
      local front = result == '' and without or done_front(kept_of(id, result, keep), RUN_SIZE + #kind[CLAIM])
      a = a + 2
      to_store[a - 1] = id
      to_store[a] = front .. sub(packed, RUN_AT, to)
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

-- as_leased(id, packed, number) → the header of a job that is as that lease call left it, as most are.
local function as_leased(id, packed, number)
  local made = call_of(number, packed)
  if not made then return nil end
  local h = glanced[id] or parse(packed)
  glanced[id] = h
  return h
end

-- end_with_header(id, h, at): one with a header is done.
local function end_with_header(id, h, at)
  local kept, packed = kept_of(id, ARGV[at], h[KEEP]), stored[id]
  if not h.payload then erase(payloads, id) end
  if packed then
    packed = done_front(kept, string.byte(packed, FRONT)) .. string.sub(packed, RUN_AT, h.to)
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
