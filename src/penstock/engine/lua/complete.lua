-- complete: running → done.
-- flags: allow-oom
-- keys: payloads results
-- kept: as a function
-- include: label header write lanes batches move alike line enter finish create ends settle
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

-- taken_apart(number, packed) → of a job without a header, as that call left it: the call, its kind, how much is to be kept, and
-- its lane if there is one. Nothing, or an error, if it is none or is cut off.
local function taken_apart(number, packed)
  local first = packed and string.byte(packed)
  local made = (first == BEGUN or first == BEGUN_LANED) and call_of(number, packed)
  if not made then return nil end
  local at, spec = made.length + (first == BEGUN and 18 or 36), nil
  local kind = kind_at(packed, at, made.kind)
  made.kind, at = kind, at + #kind.mark
  if first == BEGUN_LANED then at, spec = cmsgpack.unpack_limit(packed, 1, at) end
  if is_inside(packed, at + 23) == nil then return nil end
  return made, kind, at + 23, spec
end

-- end_alike(i, id, packed) → ok, if this is such a job; false if not.
local seen = {}    -- id → true: it may be named twice in a page
local laned = {}   -- those with a lane, which come afterwards: { position, call, kind, lane, how much is to be kept }
local function end_alike(i, id, packed)
  local fine, made, kind, to, spec = pcall(taken_apart, ARGV[i * 3], packed)
  if not fine or not made then return false end
  if seen[id] then return 'ok' end
  seen[id], kind = true, of_call(made, kind)
  if spec then
    laned[#laned + 1] = { i, made, kind, spec, to }
  else
    end_one(id, made.claim, kind, packed, to, ARGV[i * 3 + 1])
  end
  return 'ok'
end

-- end_laned(ids, raw): those with a lane give it back, and their batches are told.
local function end_laned(ids, raw)
  local names = {}
  for n, one in ipairs(laned) do names[n] = lane_name(one[4]) end
  need_lanes()
  need_line()
  fetch(names)
  for _, one in ipairs(laned) do
    local i, made, kind, spec, to = unpack(one)
    vacate(lane_of(spec), ids[i])
    if kind.batch then batch_kit.leave(kind.batch, ids[i], 'done') end
    end_one(ids[i], made.claim, kind, raw[i], to, ARGV[i * 3 + 1])
  end
end

-- end_those_alike() → by position: ok for each that was one.
local function end_those_alike()
  local ids, answers = {}, {}
  for at = 2, ARGC, 3 do ids[#ids + 1] = ARGV[at] end
  if #ids == 0 then return answers end
  local raw = call('HMGET', jobs, unpack(ids))
  for i = 1, #ids do answers[i] = end_alike(i, ids[i], raw[i]) end
  if #laned > 0 then end_laned(ids, raw) end
  for _, kind in ipairs(alike) do move_kind(kind, 'running', 'done') end
  return answers
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

return settle('complete', 3, function(id, h, at)
  local kept, packed = kept_of(id, ARGV[at], h[KEEP]), stored[id]
  erase(payloads, id)
  if packed then
    packed = marks[kept] .. packed
  else
    h[RESULT], h[REASON] = kept, ''
  end
  move('complete', id, h, 'done', nil, packed)
end, as_leased, end_those_alike())
