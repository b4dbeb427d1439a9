-- enqueue: – → ready | held | scheduled. One job or a page of them; the same id, or a taken unique key, makes no second one.
-- flags: none (a full server refuses new jobs, and only those)
-- keys: payloads queues
-- include: header write lanes move finish
-- args: per job its id, its header (state '', times below 10^12 are delays from now) and its payload
-- returns: per job: created | exists | unique, the id that holds, its state
-- event: enqueue
local ids, answers, names = {}, {}, {}
for at = 1, ARGC, 3 do ids[#ids + 1] = ARGV[at] end
local found = read(ids)

local function instant(at)
  return (at > 0 and at < DELAY_BELOW) and now + at or at
end

-- holder(key) → id and header of the unfinished job that has this unique key.
local taken = {}
local function holder(key)
  local id = taken[key] or call('HGET', unique, key)
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

local function create(id, h, payload)
  if #h[LANES] > 1 then h[LANES] = once_each(h[LANES]) end
  h[CREATED], h[SIZE] = now, #payload
  h[DUE], h[EXPIRES] = instant(h[DUE]), instant(h[EXPIRES])
  store(payloads, id, payload)
  if h[DUE] > now then
    move('enqueue', id, h, 'scheduled')
  else
    tail(id, h)
    line_up('enqueue', id, h)
  end
  cache[id] = h
  if h[UNIQUE] ~= '' then taken[h[UNIQUE]] = id end
  names[h[QUEUE]] = true
end

local news = {}
for i = 1, #ids do news[i] = decode(ARGV[i * 3 - 1]) end
meet(news, #ids)

local made = 0
for i, id in ipairs(ids) do
  local new, h = news[i], found[i] or cache[id]
  local word = h and (h[NONCE] == new[NONCE] and 'created' or 'exists')
  if spoilt[id] then
    word, h = 'exists', { [STATE] = 'unreadable' }   -- its payload is not overwritten; reconcile will bury it
  elseif not h and new[UNIQUE] ~= '' then
    id, h = holder(new[UNIQUE])
    word = h and 'unique'
  end
  if not h then
    id, h, word, made = ids[i], new, 'created', made + 1
    create(id, h, ARGV[i * 3])
  end
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = word, id, h[STATE]
end

if made > 0 then
  call('HINCRBY', meta, 'accepted', made)
  for name in pairs(names) do call('HSETNX', queues, name, '') end
  finish()
end
return answers
