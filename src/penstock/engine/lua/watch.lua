-- watch: asks to be told when jobs finish. What has finished already is answered at once.
-- flags: allow-oom
-- keys: waiting results attempts
-- kept: as a function
-- include: record header wait_for
-- args: the client whose mailbox is to be told, then the ids
-- returns: per job: its state or missing, and of a finished one its header, result and failed tries ('' each if none)
local ids, answers = {}, {}
for at = 2, ARGC do ids[#ids + 1] = ARGV[at] end
local headers = read(ids)
for i, id in ipairs(ids) do
  local h = headers[i]
  local answer = { h and h[STATE] or 'missing', '', '', '' }
  if h and (waits(h) or h[STATE] == 'running') then
    wait_for(id, ARGV[1])
  elseif h then
    answer[2] = call('HGET', jobs, id)
    answer[3] = call('HGET', results, id) or ''
    answer[4] = call('HGET', attempts, id) or ''
  end
  for part = 1, 4 do answers[#answers + 1] = answer[part] end
end
return answers
