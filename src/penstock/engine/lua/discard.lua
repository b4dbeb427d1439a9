-- discard: done | dead | cancelled → tombstone, before its time. What was stored of it is gone, its id is still known.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish entomb
-- args: the ids
-- returns: per job: ok | missing | needed (its batch has not ended), or the state that it is in, for it has not finished
-- event: discard
local ids, answers = {}, {}
for at = 1, ARGC do ids[#ids + 1] = ARGV[at] end
local headers = read(ids)
meet(headers, #ids)
for i, id in ipairs(ids) do
  local h = headers[i]
  if not h then
    answers[i] = 'missing'
  elseif waits(h) or h[STATE] == 'running' then
    answers[i] = h[STATE]
  elseif h[COMPACT] == 0 and is_needed(h) then
    answers[i] = 'needed'
  else
    answers[i] = 'ok'
    if h[COMPACT] == 0 then entomb('discard', id, h) end
  end
end
finish()
return answers
