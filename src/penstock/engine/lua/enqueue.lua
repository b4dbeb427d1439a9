-- enqueue: – → ready | held | scheduled. One job or a page of them; the same id, or a taken unique key, makes no second one.
-- flags: none (a full server refuses new jobs, and only those)
-- kept: as a function
-- include: header write lanes batches move line enter finish create ends room
-- args: per job its id, its header (state '', times below 10^12 are delays from now) or its label, and its payload
-- returns: per job: created | exists | unique | full, the id that holds, its state; or, if its batch does not take it: unknown |
--          sealed | cancelled | ended, its id and nothing
-- event: enqueue
local ids, answers = {}, {}
for at = 1, ARGC, 3 do ids[#ids + 1] = ARGV[at] end
local raw, news = call('HMGET', jobs, unpack(ids)), {}

local function answer(word, id, state)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = word, id, state
end

-- admit(id, label, payload): a plain job gets its place in line.
local records, contents, places = pile(2, 'HSET', jobs), pile(1, 'HSET', payloads), pile(4, 'ZADD', ready)
local admitted = {}   -- id → its kind
local kind            -- that of the last one
local function admit(id, label, payload)
  if not kind or kind.mark ~= label then kind = kind_of(string.sub(label, 3)) end
  if not has_room(kind[QUEUE]) then return answer('full', id, '') end
  sequence = (sequence or tonumber(seq_before or 0)) + 1
  local turn = string.format('%02d%014d', kind[PRIORITY], sequence)
  local a, b, c = records.n, contents.n, places.n
  records[a + 1], records.n = id, a + 2
  records[a + 2] = label .. struct.pack('>BI8BI8BI4', 207, sequence, 207, now, 206, #payload)
  contents[b + 1], contents[b + 2], contents.n = id, payload, b + 2
  places[c + 1], places[c + 2], places.n = '0', kind[QUEUE] .. SEP .. turn .. SEP .. id, c + 2
  admitted[id] = kind
  join('enqueue', kind, id)
  answer('created', id, 'ready')
end

-- enter_line(i): a job that is not plain, or is there already.
local function enter_line(i)
  need_create()
  local id, new = ids[i], news[i]
  local h = known_as(id, raw[i]) or cache[id] or admitted[id]
  local word = h and (h[NONCE] == (new and new[NONCE] or '') and 'created' or 'exists')
  if spoilt[id] then
    word, h = 'exists', { [STATE] = 'unreadable' }   -- its payload is not overwritten; reconcile will bury it
  elseif not h and new[UNIQUE] ~= '' then
    id, h = holder(new[UNIQUE])
    word = h and 'unique'
  end
  local refusal = not h and new[BATCH] ~= '' and batch_kit.refusal(batch_kit.one(new[BATCH]))
  if refusal then
    id, h, word = ids[i], { [STATE] = '' }, refusal
  elseif not h and not has_room(new[QUEUE]) then
    id, h, word = ids[i], new, 'full'
  elseif not h then
    id, h, word = ids[i], new, 'created'
    create('enqueue', id, h, ARGV[i * 3])
  end
  answer(word, id, h[STATE])
end

local function is_plain(i) return string.byte(ARGV[i * 3 - 1]) == 217 end
for i = 1, #ids do
  if not is_plain(i) then
    news[i] = decode(ARGV[i * 3 - 1])
    if news[i][BATCH] ~= '' then
      need_batches()
      batch_kit.adopt(news[i])
    end
  end
end
meet(news, #ids)
for i, id in ipairs(ids) do
  if is_plain(i) and not raw[i] and not admitted[id] and not cache[id] then
    admit(id, ARGV[i * 3 - 1], ARGV[i * 3])
  else
    enter_line(i)
  end
end

for _, one in ipairs(kinds) do
  move_kind(one, '', 'ready')
  created = created + one.n
  if one.n > 0 then entered[one[QUEUE]] = true end
end
if created > 0 then accept() end
return answers
