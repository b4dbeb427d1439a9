-- Headers: reading them, and the one index that a job's state puts it in.
-- keys: jobs scheduled ready held leases dead finished tombs

-- A header is a record taken apart (lib/record.lua): a table of FIELDS values, in the order that job.Header has them in.

local cache = {}    -- id → header, so that an id named twice in a page is one job
local spoilt = {}   -- id → true, where something is stored that is no header
local lines = {}    -- id → member of `ready`, where it is known already
local shown_as = {} -- id → what will be stored of those that enqueue places, a lane shows, or whose lock was taken apart

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

-- headers_of(ids, quick) → the headers. quick(id, packed, i) gives that of one whose record will stay as it is but for its head, or
-- nothing; of the others, and of all if one of them cannot be understood, a new record will be made.
local stored = {}   -- id → the record of those that are to stay as they are
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

-- glimpse(id, packed) → the header of a job that waits to run.
local function glimpse(_, packed)
  local letter = string.sub(packed, 1, 1)
  if letter == IS_READY or letter == IS_HELD then return parse(packed) end
end

-- take_apart(id, h) → the header of a job of which that was read: a new record will be made of it.
local function take_apart(id, h)
  h, stored[id] = cache[id] or h, nil
  cache[id] = h
  return h
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
