-- complete: running → done.
-- flags: allow-oom
-- keys: payloads results
-- include: header write lanes batches move line finish create ends settle
-- args: worker, then per job: id, call number, result ('' for nothing)
-- returns: per job: ok | stale
-- event: complete
local lease_calls = {}   -- call number → its claim, how what it stored begins, when it started
local glanced = {}       -- id → header of those that are as their lease left them

-- call_of(number, packed) → that call, if this is as it left it.
local function call_of(number, packed)
  local made = lease_calls[number]
  if not made then
    local claim = claim_of(number)
    local mark = IS_RUNNING .. cmsgpack.pack(claim)
    made = { claim, mark, string.sub(packed, 1, #mark) == mark and struct.unpack('>I8', packed, #mark + 2) }
    if made[3] then lease_calls[number] = made end
  end
  return string.sub(packed, 1, #made[2]) == made[2] and made
end

-- as_leased(id, packed, i) → the first values of the header of a job that is as its lease left it, as most are.
local function as_leased(id, packed, i)
  local made = call_of(ARGV[i * 3], packed)
  if not made then return nil end
  local h = glanced[id]
  if not h then
    h = listed(cmsgpack.unpack_limit(packed, HOT, #made[2] + 21))   -- lease has checked them
    h[STATE], h[CLAIM], h[STARTED], glanced[id] = 'running', made[1], made[3], h
  end
  return h
end

-- By how the result is kept (0: there is none, 1: under `results`, 2: not): what is put in front.
local marks = {}
for kept = 0, 2 do marks[kept] = IS_DONE .. struct.pack('>BI8B', 207, now, kept) end

return settle('complete', 3, function(id, h, at)
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
  move('complete', id, h, 'done', nil, packed)
end, as_leased)
