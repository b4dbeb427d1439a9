-- complete: running → done.
-- flags: allow-oom
-- keys: payloads results
-- kept: as a function
-- include: header write lanes batches move line enter finish create ends settle
-- args: worker, then per job: id, call number, result ('' for nothing)
-- returns: per job: ok | stale
-- event: complete
local lease_calls = {}   -- call number → its claim, packed, when it started, and its plain jobs: label → kind
local glanced = {}       -- id → header of those that are as their lease left them, or the kind of a plain job
local alike = {}         -- kinds of plain jobs, by lease call

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

-- kind_in(made, packed) → the kind of a plain job of this call; nothing if it is cut off.
local function kind_in(made, packed)
  local last, at = made.last, made.length + 18
  if last and #packed == last.length and string.sub(packed, at + 1, at + #last.mark) == last.mark then return last end
  local _, label = cmsgpack.unpack_limit(packed, 1, at)
  local found = made[label]
  if not found then
    local kind = kind_of(label)
    found = {
      [CLAIM] = made.claim, [STARTED] = made.started, [QUEUE] = kind[QUEUE], [TASK] = kind[TASK], [KEEP] = kind[KEEP],
      mark = kind.mark, length = at + #kind.mark + 23, n = 0, kept_until = digits(now + kind[KEEP]),
    }
    made[label], alike[#alike + 1] = found, found
  end
  made.last = found
  return #packed == found.length and found or nil
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

-- end_plain(id, number, result, packed) → ok, if this is a plain job as that call left it: it is done.
local records, holds, contents = pile(2, 'HSET', jobs), pile(3, 'ZREM', leases), pile(3, 'HDEL', payloads)
local ends = pile(4, 'ZADD', finished)
local function end_plain(id, number, result, packed)
  local made = packed and string.byte(packed) == 151 and call_of(number, packed)
  local kind = made and kind_in(made, packed)
  if not kind then return nil end
  if glanced[id] then return 'ok' end   -- named twice in this page
  local a, b, c, d = records.n, holds.n + 1, contents.n + 1, ends.n
  records[a + 1], records[a + 2], records.n = id, marks[kept_of(id, result, kind[KEEP])] .. packed, a + 2
  holds[b], holds.n = made.claim .. SEP .. id, b
  contents[c], contents.n = id, c
  ends[d + 1], ends[d + 2], ends.n = kind.kept_until, id, d + 2
  glanced[id], ended[#ended + 1] = kind, id
  join('complete', kind, id)
  return 'ok'
end

-- end_plain_ones() → by position: ok for each that was one.
local function end_plain_ones()
  local ids, answers = {}, {}
  for at = 2, ARGC, 3 do ids[#ids + 1] = ARGV[at] end
  if #ids == 0 then return answers end
  local raw = call('HMGET', jobs, unpack(ids))
  for i = 1, #ids do answers[i] = end_plain(ids[i], ARGV[i * 3], ARGV[i * 3 + 1], raw[i]) or false end
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
end, as_leased, end_plain_ones())
