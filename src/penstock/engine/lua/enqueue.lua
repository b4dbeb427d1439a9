-- enqueue: – → ready | held | scheduled. One job or a page of them; the same id, or a taken unique key, makes no second one.
-- flags: none (a full server refuses new jobs, and only those)
-- include: header write lanes batches move line finish create ends
-- args: per job its id, its header (state '', times below 10^12 are delays from now) and its payload
-- returns: per job: created | exists | unique, the id that holds, its state; or, if its batch does not take it: unknown |
--          sealed | cancelled | ended, its id and nothing
-- event: enqueue
local ids, answers = {}, {}
for at = 1, ARGC, 3 do ids[#ids + 1] = ARGV[at] end
local found = read(ids)
local news = {}
for i = 1, #ids do
  news[i] = decode(ARGV[i * 3 - 1])
  if news[i][BATCH] ~= '' then batch_tools().adopt(news[i]) end
end
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
  local refusal = not h and new[BATCH] ~= '' and batch_kit.refusal(batch_kit.one(new[BATCH]))
  if refusal then
    id, h, word = ids[i], { [STATE] = '' }, refusal
  elseif not h then
    id, h, word = ids[i], new, 'created'
    create('enqueue', id, h, ARGV[i * 3])
  end
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = word, id, h[STATE]
end

if created > 0 then accept() end
return answers
