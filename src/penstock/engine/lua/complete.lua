-- complete: running → done.
-- flags: allow-oom
-- keys: payloads results
-- kept: as a function
-- include: record mail label header write lanes batches move alike line enter finish create ends settle
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
    local mark = cmsgpack.pack(claim)
    made = { claim = claim, mark = mark, length = #mark + 1 }
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
      [CLAIM] = made.claim, [STARTED] = made.started, [QUEUE] = kind[QUEUE], [TASK] = kind[TASK], [KEEP] = kind[KEEP],
      n = 0, waited = 0, kept_until = digits(now + kind[KEEP]),
    }
    made[kind], alike[#alike + 1] = found, found
    if kind[BATCH] ~= '' then
      need_batches()
      found.batch = batch_kit.one(kind[BATCH])
    end
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

-- end_one(id, claim, kind, packed, to, result): this one of a kind, of which that much is to be kept, is done.
local records, holds, contents = pile(2, 'HSET', jobs), pile(3, 'ZREM', leases), pile(3, 'HDEL', payloads)
local ends = pile(4, 'ZADD', finished)
local function end_one(id, claim, kind, packed, to, result)
  local a, b, c = records.n, holds.n + 1, ends.n
  if #packed == to + 1 then   -- its payload is not part of the record
    contents.n = contents.n + 1
    contents[contents.n] = id
  end
  records[a + 1], records.n = id, a + 2
  records[a + 2] = marks[kept_of(id, result, kind[KEEP])] .. string.sub(packed, 1, to) .. NOWHERE
  holds[b], holds.n = claim .. SEP .. id, b
  ends[c + 1], ends[c + 2], ends.n = kind.kept_until, id, c + 2
  ended[#ended + 1] = id
  join('complete', kind, id)
end

-- taken_apart(number, packed) → of a job without a header, as that call left it: the call, its kind, how much is to be kept, its
-- lane and the name of that, if there is one. Nothing, or an error, if it is none or is cut off.
local function taken_apart(number, packed)
  local first = packed and string.byte(packed)
  local made = (first == BEGUN or first == BEGUN_LANED) and call_of(number, packed)
  if not made then return nil end
  local at, spec = made.length + (first == BEGUN and 18 or 36), nil
  local kind = kind_at(packed, at, made.kind)
  made.kind, at = kind, at + #kind.mark
  if first == BEGUN_LANED then at, spec = lane_at(packed, at, kind) end
  if is_inside(packed, at + 23) == nil then return nil end
  return made, kind, at + 23, spec, spec and lane_name(spec)
end

-- By position, of those without a header that are as their call left them: id, record, call, kind, lane, how much is to be kept.
local ids, raw, calls_of, kinds_of, specs, parts = {}, {}, {}, {}, {}, {}
for at = 2, ARGC, 3 do ids[#ids + 1] = ARGV[at] end
if #ids > 0 then raw = call('HMGET', jobs, unpack(ids)) end

-- recognise(i, packed) → the name of its lane, if it is one of those and has one.
local function recognise(i, packed)
  local fine, made, kind, to, spec, name = pcall(taken_apart, ARGV[i * 3], packed)
  if not fine or not made then return nil end
  calls_of[i], kinds_of[i], specs[i], parts[i] = made, of_call(made, kind), spec, to
  return name
end

-- recognise_all(): and reads their lanes.
local function recognise_all()
  local names = {}
  for i = 1, #ids do names[#names + 1] = recognise(i, raw[i]) end
  if #names == 0 then return end
  need_lanes()
  need_line()
  fetch(names)
end

-- end_alike(i) → ok: this one of them is done.
local seen = {}    -- id → true: it may be named twice in a page
local function end_alike(i)
  local id, kind, spec = ids[i], kinds_of[i], specs[i]
  if seen[id] then return 'ok' end
  seen[id] = true
  if spec then vacate(lane_of(spec), id) end
  if kind.batch then batch_kit.leave(kind.batch, id, 'done') end
  end_one(id, calls_of[i].claim, kind, raw[i], parts[i], ARGV[i * 3 + 1])
  return 'ok'
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
local answers = settle_page('complete', 3, end_with_header, as_leased, kinds_of, end_alike)
for _, kind in ipairs(alike) do move_kind(kind, 'running', 'done') end
finish()
return answers
