-- reschedule: scheduled | held | ready → scheduled at another time, or → ready | held if that is not in the future.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish
-- args: due time (below 10^12 a delay from now), then the ids
-- returns: per job: ok | missing, or the state that it is in
-- event: reschedule
local ids, answers, at = {}, {}, tonumber(ARGV[1])
for i = 2, ARGC do ids[#ids + 1] = ARGV[i] end
if at < DELAY_BELOW then at = now + at end
local headers = read(ids)
meet(headers, #ids)
for i, id in ipairs(ids) do
  local h = headers[i]
  if not h then
    answers[i] = 'missing'
  elseif not waits(h) then
    answers[i] = h[STATE]
  else
    answers[i] = 'ok'
    if at > now then
      h[DUE] = at
      move('reschedule', id, h, 'scheduled')
    elseif h[STATE] == 'scheduled' then
      h[DUE] = at
      tail(id, h)
      line_up('reschedule', id, h)
    end
  end
end
finish()
return answers
