-- enqueue: – → ready | held | scheduled. One job or a page of them; the same id, or a taken unique key, makes no second one.
-- flags: none (a full server refuses new jobs, and only those)
-- include: header write lanes move line finish create room
-- args: per job its id, its header (state '', times below 10^12 are delays from now) and its payload
-- returns: per job: created | exists | unique | full, the id that holds, its state
-- event: enqueue
local ids, answers = {}, {}
for at = 1, ARGC, 3 do ids[#ids + 1] = ARGV[at] end
local found = read(ids)
local news = {}
for i = 1, #ids do news[i] = decode(ARGV[i * 3 - 1]) end
meet(news, #ids)

for i, id in ipairs(ids) do
  local new, h = news[i], found[i] or cache[id]
  local word = h and (h[NONCE] == new[NONCE] and 'created' or 'exists')
  if spoilt[id] then
    word, h = 'exists', { [STATE] = 'unreadable' }   -- its payload is not overwritten; reconcile will bury it
  elseif not h and new[UNIQUE] ~= '' then
    id, h = holder(new[UNIQUE])
    word = h and 'unique'
  end
  if not h and not has_room(new[QUEUE]) then
    id, h, word = ids[i], new, 'full'
  elseif not h then
    id, h, word = ids[i], new, 'created'
    create('enqueue', id, h, ARGV[i * 3])
  end
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = word, id, h[STATE]
end

if created > 0 then accept() end
return answers
