-- Headers: reading them, and the one index that a job's state puts it in.
-- keys: jobs scheduled ready leases dead finished tombs

local cache = {}    -- id → header, so that an id named twice in a page is one job
local spoilt = {}   -- id → true, where something is stored that is no header
local lines = {}    -- id → member of `ready`, where it is known already

local function listed(_, ...) return { ... } end

-- checked(raw, n) → a header; an error if a value that is reckoned with is no number, or one that is joined no text.
local function checked(raw, n)
  local h = listed(cmsgpack.unpack_limit(raw, n, 3))
  local _ = h[PRIORITY] + h[SEQ] + h[SINCE] + h[DUE] + h[EXPIRES] + h[SIZE] + h[KEEP] + h[FAILURES] + h[CRASHES]
    + h[STARTS] + h[RELEASES] + h[GENERATION] + h[STARTED] + h[COMPACT] + h[FENCE]
    + #h[QUEUE] + #h[TASK] + #h[UNIQUE] + #h[CLAIM] + #h[LAST] + #h[REASON]
  local texts = type(h[STATE]) == 'string' and type(h[QUEUE]) == 'string' and type(h[TASK]) == 'string'
  return texts and h[FIELDS] ~= nil and h or nil
end

-- decode(raw) → a header, or nil if it is none. It is a msgpack array, read as the values that follow its three bytes of
-- length: as an array it would grow value by value, at twice the price.
local function decode(raw)
  local kind, high, low = string.byte(raw, 1, 3)
  if kind ~= 220 or not low then return nil end
  local fine, h = pcall(checked, raw, high * 256 + low)
  return fine and h or nil
end

-- read(ids) → the headers by position; nil where there is none or it cannot be understood.
local function read(ids)
  local found = {}
  if #ids == 0 then return found end
  local raw = call('HMGET', jobs, unpack(ids))
  for i = 1, #ids do
    local id = ids[i]
    local header = cache[id]
    if not header and raw[i] then
      header = decode(raw[i])
      cache[id] = header
      if not header then spoilt[id] = true end
    end
    found[i] = header
  end
  return found
end

-- line(id, h) → the member of `ready` that stands for this job: queue, priority, sequence, id.
local function line(id, h)
  return lines[id] or h[QUEUE] .. SEP .. string.format('%02d%014d', h[PRIORITY], h[SEQ]) .. SEP .. id
end

-- place(id, h) → key, score and member of the index that holds a job in this state.
local function place(id, h)
  local state = h[STATE]
  if state == 'ready' then return ready, 0, line(id, h) end
  if state == 'running' then return leases, 0, h[CLAIM] .. SEP .. id end
  if state == 'scheduled' then return scheduled, h[DUE], id end
  if h[COMPACT] == 1 then return tombs, h[SINCE], id end
  if state == 'dead' then return dead, h[SINCE], id end
  return finished, h[SINCE] + h[KEEP], id
end

-- waits(h) → is it yet to run, so that it can expire?
local function waits(h)
  return h[STATE] == 'ready' or h[STATE] == 'scheduled' or h[STATE] == 'held'
end

-- head(key) → the lowest score of an index by time, or nothing.
local function head(key)
  local score = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return score ~= 'inf' and tonumber(score) or nil
end
