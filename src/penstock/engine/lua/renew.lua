-- renew: workers stay alive, whatever they run and however long it takes.
-- flags: allow-oom
-- keys: cancels
-- kept: as a function
-- include: record mail skills life
-- args: life in ms, then the workers
-- returns: per worker: ok | unknown; the running jobs whose cancelling was asked for: worker, id, …; how many others are
--          past their life, so that somebody should reap
local words, asked, alive = {}, {}, { 'ZADD', workers, 'XX' }
local late = call('ZCOUNT', workers, '-inf', '(' .. now)
for at = 2, ARGC do
  local worker = ARGV[at]
  local until_then = call('ZSCORE', workers, worker)
  if until_then then
    if tonumber(until_then) < now then late = late - 1 end
    words[#words + 1] = 'ok'
    alive[#alive + 1] = now + ARGV[1]
    alive[#alive + 1] = worker
    local members = call('ZRANGE', cancels, '[' .. worker .. SEP, '(' .. worker .. AFTER, 'BYLEX')
    for _, member in ipairs(members) do
      asked[#asked + 1] = worker
      asked[#asked + 1] = string.sub(member, #worker + 2)
    end
  else
    words[#words + 1] = 'unknown'
  end
end
heard()
if #alive > 3 then call(unpack(alive)) end
return { words, asked, late }
