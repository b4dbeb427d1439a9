-- The end of a script: lanes show their next jobs, everything is written, and those concerned are told.
-- keys: queues

local LETTERS = 256   -- letters that one script sends at most; instead of more, one goes to the mailbox that all clients listen to

-- tell_ended(): those who wait for jobs are told which ones finished, in one letter each.
local function tell_ended()
  if #ended == 0 or call('HLEN', waiting) <= 1 then return end
  local letters, awaited, n = {}, {}, 0
  for i, clients in ipairs(call('HMGET', waiting, unpack(ended))) do
    for client in string.gmatch(clients or '', '[^\31]+') do
      if not letters[client] then n = n + 1 end
      letters[client] = (letters[client] or 'end') .. SEP .. ended[i]
    end
    if clients then
      call('HDEL', waiting, ended[i])
      awaited[#awaited + 1] = ended[i]
    end
  end
  if n > LETTERS then letters = { crons = letters.crons, ['*'] = 'end' .. SEP .. table.concat(awaited, SEP) } end
  for client, text in pairs(letters) do mail('to:' .. client, text) end
end

local function tell()
  local minute = math.floor(now / 60000) .. SEP
  local entry = {}
  sum_up()
  for i, one in ipairs(groups) do
    tally(sums, one[2], one[1], one[7])
    entry[i] = { one[1], one[2], one[3], one[4], one[5], table.concat(one[6], SEP) }
  end
  for queue, row in pairs(sums) do
    for name, sum in pairs(row) do
      if sum > 0 then call('HINCRBY', stats, minute .. queue .. SEP .. name, sum) end
    end
  end
  if #entry > 0 then call('XADD', events, 'MAXLEN', '~', EVENTS, '*', 'e', cmsgpack.pack({ now, entry })) end
end

-- finish(): makes all pending writes, then the counts, the event and the wake-ups. The last thing a script does.
local function finish()
  if touched[1] then endings.look_at() end
  if refills[1] then
    need_line()
    fill(refills)
  end
  if next(lanes_read) then save_lanes() end
  if sequence then store(meta, 'seq', sequence) end
  write()
  for queue, row in pairs(deltas) do
    for state, change in pairs(row) do
      if change ~= 0 and state ~= 'ready' then call('HINCRBY', counts, queue .. SEP .. state, change) end
    end
  end
  tell()
  for key, at in pairs(alarms) do
    if head(key) == at then mail('timer', at) end
  end
  tell_ended()
  if asleep_before == '1' and settings_before then
    for queue, n in pairs(ceased) do
      if string.find(call('HGET', queues, queue) or '', '%d$') then arrivals[queue] = (arrivals[queue] or 0) + n end
    end
  end
  if next(arrivals) then wake_any(arrivals) end
end
