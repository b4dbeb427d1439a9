-- Pending writes. A script reads and checks everything first, then writes in one go and in this order, each key with
-- one variadic command: contents, headers, removals from indexes, lanes, additions to indexes. The header is the truth: what
-- comes after it can be rebuilt from it (reconcile), should a script ever be stopped half way. Nobody is in line as the owner
-- of a lock that does not say so.
-- keys: payloads ready heads

local stages = { {}, {}, {}, {}, {} }

-- pile(stage, command, key) → what this command will be given: its length is n.
local function pile(stage, command, key)
  local piles = stages[stage]
  local found = piles[key]
  if not found then
    found = { command, key, n = 2 }
    piles[key] = found
    piles[#piles + 1] = found
  end
  return found
end

local function put(stage, command, key, a, b)
  local found = stages[stage][key] or pile(stage, command, key)
  local n = found.n + 1
  found[n] = a
  if b then n = n + 1; found[n] = b end
  found.n = n
end

local function store(key, field, value) put(1, 'HSET', key, field, value) end
local function drop(key, member) put(3, 'ZREM', key, member) end
local function erase(key, field) put(3, 'HDEL', key, field) end
local function add(key, score, member) put(5, 'ZADD', key, score, member) end
local function set(key, field, value) put(5, 'HSET', key, field, value) end

-- Of a job with lanes an entry may be added and taken out again by one script, so these are kept by name.
local entries = {}   -- key → member → score, or false to remove it
local function enter(key, score, member)
  if not entries[key] then entries[key] = {} end
  entries[key][member] = score
end
local function withdraw(key, member)
  if not entries[key] then entries[key] = {} end
  entries[key][member] = false
end

-- alarm(key, at): something is due then; whoever keeps the time is told if it is the next.
local alarms = {}   -- `scheduled`, `timers` or `openings` → the earliest time added to it
local function alarm(key, at)
  if not alarms[key] or at < alarms[key] then alarms[key] = at end
end

-- save(id, h, packed) → the record, which is the header's own unless it is given. `bare`: the record of a job that was held and is
-- ready; it stays as it is but for its head and its place.
local function save(id, h, packed)
  if h.bare and h[PRIORITY] == h.kind[PRIORITY] then packed = shown_record(h.bare, READY_FRONT, h[SEQ]) end
  if not packed then
    if h.payload and h.payload ~= true and #h.payload >= INLINE then   -- a new one
      store(payloads, id, h.payload)
      h.payload = nil
    end
    packed = encode(h)
  end
  if h.bare then shown_as[id], h.bare = packed, nil end
  put(2, 'HSET', jobs, id, packed)
  return packed
end

-- leaving(key, n) → member → true, of those that this script takes out of a sorted set; nothing if these are n, and have no lanes.
local function leaving(key, n)
  local found, exits = {}, stages[3][key]
  local to = exits and exits.n or 2
  if to == n + 2 and not entries[key] then return nil end
  for i = 3, to do found[exits[i]] = true end
  for member, score in pairs(entries[key] or {}) do
    if not score then found[member] = true end
  end
  return found
end

-- unhead(queue): its place in `heads` is taken out, or becomes a later one; what `meta` says of that is no longer so.
local function unhead(queue)
  if headed_before and string.sub(headed_before, 1, #queue + 1) == queue .. SEP then store(meta, 'headed', '') end
end

-- take_out(queue): nothing of it can be leased, as far as is known.
local function take_out(queue)
  unhead(queue)
  drop(heads, queue)
end

-- score_of(member, queue) → the place of a member of this queue's line as a score of `heads`; the lowest if that cannot be read.
local function score_of(member, queue)
  local at = #queue + 2
  local priority, number = tonumber(string.sub(member, at, at + 1)), tonumber(string.sub(member, at + 2, at + 13), 16)
  return priority and number and priority * HEAD_STEP + number or 0
end

-- precede_entries(): a queue whose line somebody enters is looked at from there on, if not before. It is written before the line, so
-- that wherever a script is stopped nobody in a line is passed over.
local function precede_entries()
  local places, firsts, queue, from, first = stages[5][ready], {}, nil, nil, nil
  for i = 4, places and places.n or 2, 2 do
    local member = places[i]
    if not from or string.sub(member, 1, #from) ~= from then
      queue = string.match(member, '^[^\31]*')
      from, first = queue .. SEP, firsts[queue]
    end
    if not first or member < first then
      first = member
      firsts[queue] = member
    end
  end
  if not from then return end
  local bounds, n = { 'ZADD', heads, 'LT' }, 3
  for name, member in pairs(firsts) do
    bounds[n + 1], bounds[n + 2], n = score_of(member, name), name, n + 2
  end
  call(unpack(bounds, 1, n))
end

local function write()
  for key, members in pairs(entries) do
    for member, score in pairs(members) do
      if score then add(key, score, member) else drop(key, member) end
    end
  end
  for stage = 1, 5 do
    if stage == 5 then precede_entries() end
    for _, found in ipairs(stages[stage]) do
      if found.n > 2 then call(unpack(found, 1, found.n)) end
    end
  end
end
