-- Headers: reading them, and the one index that a job's state puts it in.
-- keys: jobs scheduled ready held leases dead finished tombs

-- A header is an array of FIELDS values; jobs that have none get one here (lib/label.lua). Lease and complete do not rewrite it,
-- they put something in front: [claim, started, fence, header] is a job that runs, [since, result, the former] one that is
-- done; each number in nine bytes. So these two read only the first HOT values of a header. Every other verb unwraps it.

local cache = {}    -- id → header, so that an id named twice in a page is one job
local spoilt = {}   -- id → true, where something is stored that is no header
local lines = {}    -- id → member of `ready`, where it is known already
local shown_as = {} -- id → what will be stored of those that enqueue places, a lane shows, or whose lock was taken apart

-- checked(h) → the header; an error if a value that is reckoned with is no number, or one that is joined no text.
local function checked(h)
  local _ = h[PRIORITY] + h[SEQ] + h[SINCE] + h[EXPIRES] + h[KEEP] + h[SIZE] + h[FAILURES] + h[CRASHES]
    + h[STARTED] + #h[QUEUE] + #h[TASK] + #h[UNIQUE] + #h[LANES] + #h[BATCH] + #h[CLAIM] + h[HOME] + h[TURN]
    + h[ARRIVAL]
  if type(h[STATE]) ~= 'string' or type(h[QUEUE]) ~= 'string' or type(h[TASK]) ~= 'string' then error('no text') end
  if h[TURN] > #h[LANES] then error('no such lane') end
  if (h[STATE] == 'held' or (h[STATE] == 'ready' and #h[LANES] > 0)) and not h[LANES][h[HOME]] then error('no home') end
  return h
end

-- glance(raw, at) → the first values of the header that begins there.
local function glance(raw, at) return checked(listed(cmsgpack.unpack_limit(raw, HOT, at + 3))) end

-- whole(raw) → all of a header, unwrapped. It is read as the values that follow its three bytes of length: as an array it
-- would grow value by value, at twice the price.
local function whole(raw)
  local at, since, result, claim, started, fence = 0
  if string.sub(raw, 1, 1) == IS_DONE then at, since, result = cmsgpack.unpack_limit(raw, 2, 1) end
  local first = string.byte(raw, at + 1)
  local shown, lane_since, number, h
  if first == RUNNING or first == BEGUN or first == BEGUN_LANED then
    at, claim, started, fence = cmsgpack.unpack_limit(raw, 3, at + 1)
  elseif first == LANED then
    at, shown = cmsgpack.unpack_limit(raw, 1, at + 1)
  end
  if first == LANED or first == BEGUN_LANED then at, lane_since, number = cmsgpack.unpack_limit(raw, 2, at) end
  local mark, high, low = string.byte(raw, at + 1, at + 3)
  if mark == PLAIN then
    h = labelled(raw, at, shown == 0 and 'held' or 'ready', lane_since, number)
    h.is_owner = shown == 2   -- as it is stored; a move does not change it
  elseif mark == 220 then
    h = listed(cmsgpack.unpack_limit(raw, high * 256 + low, at + 3))
  else
    return nil
  end
  checked(h)
  local _ = h[CREATED] + h[DUE] + h[STARTS] + h[RELEASES] + h[GENERATION] + h[FENCE] + h[COMPACT]
    + #h[NONCE] + #h[LAST] + #h[REASON] + #h[DEATH]
  if claim then
    h[STATE], h[SINCE], h[CLAIM], h[STARTED], h[FENCE] = 'running', started, claim, started, fence
    h[STARTS] = h[STARTS] + 1
  end
  if since then
    h[STATE], h[SINCE], h[RESULT], h[REASON] = 'done', since, result, ''
    h[CLAIM], h[LAST] = '', claim .. SEP .. 'complete' .. SEP .. 'ok'
  end
  h[FINISH] = h[FINISH] or 0   -- one that was stored before there were batches
  return h
end

-- decode(raw) → a header, or nil if it is none.
local function decode(raw)
  local fine, h = pcall(whole, raw)
  return fine and h or nil
end

-- known_as(id, raw) → the header of a job of which this is stored; nil if there is none or it cannot be understood.
local function known_as(id, raw)
  local header = cache[id]
  if not header and raw then
    header = decode(raw)
    cache[id] = header
    if not header then spoilt[id] = true end
  end
  return header
end

-- read(ids) → the headers by position; what was read before is as it was left.
local function read(ids)
  local found, missing, positions = {}, {}, {}
  for i = 1, #ids do
    local header = cache[ids[i]]
    if header then
      found[i] = header
    else
      missing[#missing + 1], positions[#positions + 1] = ids[i], i
    end
  end
  if #missing == 0 then return found end
  local raw = call('HMGET', jobs, unpack(missing))
  for n = 1, #missing do found[positions[n]] = known_as(missing[n], shown_as[missing[n]] or raw[n]) end
  return found
end

-- headers_of(ids, quick) → the headers. quick(id, packed, i) gives the first values of one that is as most are, or nothing;
-- of the others, and of all if one of them cannot be understood, all values are read.
local stored = {}   -- id → what is stored of those of which only the first values were read
local function quick_ones(ids, raw, quick)
  local found = {}
  for i = 1, #ids do
    local id, packed = ids[i], raw[i]
    local h = packed and not cache[id] and quick(id, packed, i)
    if h then found[i], stored[id] = h, packed end
  end
  return found
end
local function headers_of(ids, quick)
  if #ids == 0 then return {} end
  local fine, found = pcall(quick_ones, ids, call('HMGET', jobs, unpack(ids)), quick)
  if not fine then
    stored = {}
    return read(ids)
  end
  for i = 1, #ids do found[i] = found[i] or read({ ids[i] })[1] end
  return found
end

-- glimpse(id, packed) → the first values of a header that nothing was put in front of, as those of most that wait and have one.
local function glimpse(_, packed)
  if string.sub(packed, 1, 9) == BARE_READY or string.sub(packed, 1, 8) == BARE_HELD then return glance(packed, 0) end
end

-- last_part(member) → what follows its last separator: mostly an id.
local function last_part(member) return string.match(member, '^.*\31(.*)$') or member end

-- line(id, h) → the member of `ready` that stands for this job: queue, priority, sequence, id.
local function line(id, h)
  return lines[id] or h[QUEUE] .. SEP .. rank_of(h[PRIORITY], h[SEQ]) .. SEP .. id
end

-- is_ordered(spec) → does this job say that the lane keeps the order?
local function is_ordered(spec) return lane_name(spec) and lane_kinds[spec] end

-- waiting_line(id, h) → the member of `held` that stands for this job: lane, queue, priority and arrival, id. Whose turn it is
-- comes first; otherwise in an ordered lane priorities do not matter.
local FIRST = string.rep('0', 14)
local function waiting_line(id, h)
  local spec, rank = h[LANES][h[HOME]], FIRST
  if h[HOME] ~= h[TURN] then rank = rank_of(is_ordered(spec) and 0 or h[PRIORITY], h[ARRIVAL]) end
  return lane_name(spec) .. SEP .. h[QUEUE] .. SEP .. rank .. SEP .. id
end

-- place(id, h) → key, score and member of the index that holds a job in this state.
local function place(id, h)
  local state = h[STATE]
  if state == 'ready' then return ready, '0', line(id, h) end
  if state == 'running' then return leases, '0', h[CLAIM] .. SEP .. id end
  if state == 'held' then return held, '0', waiting_line(id, h) end
  if state == 'scheduled' then return scheduled, h[DUE], id end
  if h[COMPACT] == 1 then return tombs, h[SINCE], id end
  if state == 'dead' then return dead, h[SINCE], id end
  return finished, h[SINCE] + h[KEEP], id
end

-- waits(h) → is it yet to run, so that it can expire?
local function waits(h)
  return h[STATE] == 'ready' or h[STATE] == 'scheduled' or h[STATE] == 'held'
end

-- held_by(worker, limit) → up to limit members of `leases`: what it runs.
local function held_by(worker, limit)
  return call('ZRANGE', leases, '[' .. worker .. SEP, '(' .. worker .. AFTER, 'BYLEX', 'LIMIT', 0, limit)
end

-- head(key) → the lowest score of an index by time, or nothing.
local function head(key)
  local score = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return score ~= 'inf' and tonumber(score) or nil
end
