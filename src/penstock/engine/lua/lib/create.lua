-- Creation: a job that did not exist enters the line, now or later.
-- keys: payloads queues

local created = 0       -- jobs made in this call
local entered = {}      -- queues that they are in
local found_queues = {} -- those of them that were there before
local claimed = {}      -- unique key → the one of them that has it

-- accept(): counts what was created, makes its queues known, and finishes.
local function accept()
  if created > 0 then store(meta, 'accepted', (accepted_before or 0) + created) end
  for queue in pairs(entered) do
    if not found_queues[queue] then call('HSETNX', queues, queue, '') end
  end
  finish()
end

-- on demand: need_create

-- instant(at) → a time; small numbers are delays from now.
local function instant(at)
  return (at > 0 and at < DELAY_BELOW) and now + at or at
end

-- holder(key) → id and header of the unfinished job that has this unique key.
local function holder(key)
  local id = claimed[key] or call('HGET', unique, key)
  local h = id and read({ id })[1]
  if h and h[UNIQUE] == key and (waits(h) or h[STATE] == 'running') then return id, h end
end

-- once_each(specs) → a lane that is named twice is asked for once.
local function once_each(specs)
  local found, seen = {}, {}
  for _, spec in ipairs(specs) do
    local name = lane_name(spec)
    if not seen[name] then found[#found + 1], seen[name] = spec, true end
  end
  return found
end

-- create(verb, id, h, payload, text): the job is there from now on.
local function create(verb, id, h, payload, text)
  if #h[LANES] > 1 then h[LANES] = once_each(h[LANES]) end
  h[CREATED], h[SIZE] = h[BATCH] == '' and now or batch_kit.since(h[BATCH]), #payload
  h[DUE], h[EXPIRES] = instant(h[DUE]), instant(h[EXPIRES])
  h.payload = payload
  if h[DUE] > now then
    move(verb, id, h, 'scheduled', text)
  else
    tail(id, h)
    line_up(verb, id, h, text)
  end
  cache[id] = h
  if h[UNIQUE] ~= '' then claimed[h[UNIQUE]] = id end
  created, entered[h[QUEUE]] = created + 1, true
end
