-- complete: running → done.
-- flags: allow-oom
-- keys: payloads results
-- include: header write lanes move line enter finish settle
-- args: worker, then per job: id, call number, result ('' for nothing)
-- returns: per job: ok | stale
-- event: complete
local lease_calls = {}   -- call number → its claim, packed, when it started, and its plain jobs: label → kind
local glanced = {}       -- id → header of those that are as their lease left them, or the end of a plain job
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

-- kind_in(made, packed) → the kind of a plain job of this call.
local function kind_in(made, packed)
  local last, at = made.last, made.length + 18
  if last and string.sub(packed, at + 1, at + #last.mark) == last.mark then return last end
  local _, label = cmsgpack.unpack_limit(packed, 1, at)
  local found = made[label]
  if not found then
    local kind = kind_of(label)
    found = {
      [STATE] = 'running', [CLAIM] = made.claim, [STARTED] = made.started, [LANES] = kind[LANES], [QUEUE] = kind[QUEUE],
      [TASK] = kind[TASK], [KEEP] = kind[KEEP], mark = kind.mark, n = 0, kept_until = digits(now + kind[KEEP]),
    }
    made[label], alike[#alike + 1] = found, found
  end
  made.last = found
  return found
end

-- as_leased(id, packed, i) → the kind of a plain job, or the first values of a header, that is as its lease left it, as most are.
local function as_leased(id, packed, i)
  local first = string.byte(packed)
  local made = (first == 151 or first == 148) and call_of(ARGV[i * 3], packed)
  if not made then return nil end
  if first == 151 then return kind_in(made, packed) end
  local h = glanced[id]
  if not h then
    h = listed(cmsgpack.unpack_limit(packed, HOT, made.length + 21))   -- lease has checked them
    h[STATE], h[CLAIM], h[STARTED], glanced[id] = 'running', made.claim, made.started, h
  end
  return h
end

-- end_plain(id, kind, packed): a plain job of this kind is done.
local records, holds, ends = pile(2, 'HSET', jobs), pile(3, 'ZREM', leases), pile(4, 'ZADD', finished)
local function end_plain(id, kind, packed)
  local a, b, c = records.n, holds.n + 1, ends.n
  records[a + 1], records[a + 2], records.n = id, packed, a + 2
  holds[b], holds.n = kind[CLAIM] .. SEP .. id, b
  ends[c + 1], ends[c + 2], ends.n = kind.kept_until, id, c + 2
  glanced[id], ended[#ended + 1] = kind, id
  join('complete', kind, id)
end

-- By how the result is kept (0: there is none, 1: under `results`, 2: not): what is put in front.
local marks = {}
for kept = 0, 2 do marks[kept] = IS_DONE .. struct.pack('>BI8B', 207, now, kept) end

return settle('complete', 3, function(id, h, at)
  if glanced[id] == h and h.mark then return end   -- a plain job that is named twice in this page
  local result, kept, packed = ARGV[at], 0, stored[id]
  if result ~= '' then
    kept = h[KEEP] > 0 and 1 or 2
    if kept == 1 then store(results, id, result) end
  end
  erase(payloads, id)
  if packed then
    packed = marks[kept] .. packed
  else
    h[RESULT], h[REASON] = kept, ''
  end
  if h.mark then end_plain(id, h, packed) else move('complete', id, h, 'done', nil, packed) end
end, as_leased, function()
  for _, kind in ipairs(alike) do move_kind(kind, 'running', 'done') end
end)
