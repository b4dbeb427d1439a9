-- cancel: scheduled | held | ready → cancelled; a running job is flagged and its worker told.
-- flags: allow-oom
-- include: header write lanes move line enter finish
-- args: reason, then the ids
-- returns: per job: cancelled | cancelling | missing, or the state it had already ended in
-- event: cancel
local ids, answers, letters = {}, {}, {}
for at = 2, ARGC do ids[#ids + 1] = ARGV[at] end
local headers = read(ids)
meet(headers, #ids)
for i, id in ipairs(ids) do
  local h = headers[i]
  if not h then
    answers[i] = 'missing'
  elseif waits(h) then
    h[REASON] = ARGV[1]
    move('cancel', id, h, 'cancelled', ARGV[1])
    answers[i] = 'cancelled'
  elseif h[STATE] == 'running' then
    if h[CANCELLING] == 0 then
      local worker = string.match(h[CLAIM], '^[^\31]*')
      h[CANCELLING], h[REASON] = 1, ARGV[1]
      add(cancels, 0, worker .. SEP .. id)
      save(id, h)
      note('cancel', id, h, 'cancelling')
      letters[#letters + 1] = { 'to:' .. worker, 'cancel ' .. id }
    end
    answers[i] = 'cancelling'
  else
    answers[i] = h[STATE]
  end
end
finish()
for _, letter in ipairs(letters) do mail(letter[1], letter[2]) end
return answers
