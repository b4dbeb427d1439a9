-- lease: ready → running. Gives a worker the first jobs of its queues; the pair (worker, call) names the attempts.
-- flags: allow-oom
-- keys: payloads workers calls
-- include: header write move candidates numbers
-- args: worker, call number, highest call number whose answer the worker has, how many at most, how many bytes of
--       payload at most, the names of its queues in strict order or * for all
-- returns: ok | unknown (register first) | stale (an old call, already answered), 1 if it should ask again at once,
--          then per job: id, header, payload. A resent call gets what it still holds again, and never anything new.
-- event: lease; expire and bury for candidates that can no longer run
local worker, number, want, room = ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])
local claim = worker .. SEP .. number
local answer = { 'ok', 0 }

local function give(id, packed, payload)
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = id, packed, payload
end

if not call('ZSCORE', workers, worker) then return { 'unknown', 0 } end
local made, known = numbers_of(worker, tonumber(number), tonumber(ARGV[3]))
if known == 'stale' then return { 'stale', 0 } end
if known == 'made' then
  local before = still_held(claim)
  if #before > 0 then
    local packed, contents = call('HMGET', jobs, unpack(before)), call('HMGET', payloads, unpack(before))
    for i, id in ipairs(before) do give(id, packed[i], contents[i]) end
  end
  return answer
end

local names = {}
for at = 6, ARGC do names[#names + 1] = ARGV[at] end
local ids, more = candidates(names, want)
if more and #ids < want then answer[2] = 1 end

-- glances(raw) → the first values of the headers that nothing was added to, as they are in most cases.
local stored = {}   -- id → what is stored of these
local function glances(raw)
  local found = {}
  for i = 1, #ids do
    local packed = raw[i]
    if packed and string.sub(packed, 1, 9) == BARE_READY then
      found[i], stored[ids[i]] = glance(packed, 0), packed
    end
  end
  return found
end

-- headers_of_all() → the headers; of those that are not as usual all values.
local function headers_of_all()
  if #ids == 0 then return {} end
  local fine, found = pcall(glances, call('HMGET', jobs, unpack(ids)))
  if not fine then
    stored = {}
    return read(ids)
  end
  for i = 1, #ids do found[i] = found[i] or read({ ids[i] })[1] end
  return found
end

-- What cannot run leaves the line here; what can is started, as long as its payloads fit into the answer.
local headers, start, size = headers_of_all(), {}, 0
for i = 1, #ids do
  local id, h = ids[i], headers[i]
  if spoilt[id] then
    local queue = string.match(lines[id], '^[^\31]*')
    drop(ready, lines[id])
    tally(deltas, queue, 'ready', -1)
    quarantine(id, queue)
    answer[2] = 1
  elseif not h or h[STATE] ~= 'ready' then
    drop(ready, lines[id])
    answer[2] = 1
  elseif h[EXPIRES] > 0 and h[EXPIRES] <= now then
    h = read({ id })[1]
    h[REASON] = 'expired'
    move('expire', id, h, 'cancelled', 'expired')
    answer[2] = 1
  elseif #start > 0 and size + h[SIZE] > room then
    answer[2] = 1
    break
  else
    start[#start + 1] = i
    size = size + h[SIZE]
  end
end

-- wrapped(packed, fence) → what is stored of a job that runs.
local running_mark = IS_RUNNING .. cmsgpack.pack(claim) .. struct.pack('>BI8B', 207, now, 207)
local function wrapped(packed, fence) return running_mark .. struct.pack('>I8', fence) .. packed end

if #start > 0 then
  local taken = {}
  for n, i in ipairs(start) do taken[n] = ids[i] end
  local contents = call('HMGET', payloads, unpack(taken))
  local fence = math.max(tonumber(call('HGET', meta, 'fence') or 0), now_us - 1)
  for n, i in ipairs(start) do
    local id, h = ids[i], headers[i]
    local packed = stored[id]
    if contents[n] then
      tally(sums, h[QUEUE], 'wait', now - h[SINCE])
      fence = fence + 1
      h[CLAIM], h[STARTED] = claim, now
      if not packed then h[FENCE], h[STARTS] = fence, h[STARTS] + 1 end
      give(id, move('lease', id, h, 'running', nil, packed and wrapped(packed, fence)), contents[n])
    else
      h = read({ id })[1]
      h[REASON] = 'payload_lost'
      move('bury', id, h, 'dead', 'payload_lost')
      answer[2] = 1
    end
  end
  call('HSET', meta, 'fence', fence)
end

call('HSET', calls, worker, made)
local hungry = #answer - 2 < want * 3 and answer[2] == 0
for _, name in ipairs(names) do
  if hungry then add(idle, 0, name .. SEP .. worker) else drop(idle, name .. SEP .. worker) end
end
finish()
return answer
