-- complete: running → done.
-- flags: allow-oom
-- keys: payloads results
-- include: header write lanes move finish settle
-- args: worker, then per job: id, call number, result ('' for nothing)
-- returns: per job: ok | stale
-- event: complete
local stored, glanced = {}, {}   -- id → what lease had stored, where nothing was changed since; and the header
local lease_calls = {}    -- call number → its claim, how what it stored begins, when it started

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

-- glances(ids, raw) → of the jobs that are as their lease left them, as most are, the first values of their headers.
local function glances(ids, raw)
  local found = {}
  for i = 1, #ids do
    local packed = raw[i]
    local made = packed and call_of(ARGV[i * 3], packed)
    if made and stored[ids[i]] then
      found[i] = glanced[ids[i]]
    elseif made then
      local h = listed(cmsgpack.unpack_limit(packed, HOT, #made[2] + 21))   -- lease has checked them
      h[STATE], h[CLAIM], h[STARTED] = 'running', made[1], made[3]
      found[i], glanced[ids[i]], stored[ids[i]] = h, h, packed
    end
  end
  return found
end

-- look(ids) → the headers; of those that are not as usual all values.
local function look(ids)
  local fine, found = pcall(glances, ids, call('HMGET', jobs, unpack(ids)))
  if not fine then
    stored = {}
    return read(ids)
  end
  for i = 1, #ids do found[i] = found[i] or read({ ids[i] })[1] end
  return found
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
end, look)
