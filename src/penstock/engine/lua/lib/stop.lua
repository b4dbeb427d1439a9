-- Cancelling: a job that waits ends at once; one that runs is flagged and its worker told.

local letters = {}   -- to workers, sent when everything is written

-- stop(verb, id, h, reason) → cancelled | cancelling | missing, or the state it had already ended in.
local function stop(verb, id, h, reason)
  if not h then return 'missing' end
  if waits(h) then
    h[REASON] = reason
    move(verb, id, h, 'cancelled', reason)
    return 'cancelled'
  end
  if h[STATE] ~= 'running' then return h[STATE] end
  if h[CANCELLING] == 0 then
    local worker = string.match(h[CLAIM], '^[^\31]*')
    h[CANCELLING], h[REASON] = 1, reason
    add(cancels, 0, worker .. SEP .. id)
    save(id, h)
    note(verb, id, h, 'cancelling')
    letters[#letters + 1] = { 'to:' .. worker, 'cancel ' .. id }
  end
  return 'cancelling'
end

-- stopped(): everything is written, and the workers are told.
local function stopped()
  finish()
  for _, letter in ipairs(letters) do mail(letter[1], letter[2]) end
end
