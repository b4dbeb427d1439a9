-- The end of a script: lanes show their next jobs, everything is written, and those concerned are told.
-- keys: queues heads

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

-- add_up(key, names, changes): adds these to numbers of a hash. Many, as of a page of jobs of many queues, take two commands for all.
local AT_A_TIME = 1000
local function add_up(key, names, changes)
  if #names <= 2 then
    for i, name in ipairs(names) do call('HINCRBY', key, name, changes[i]) end
    return
  end
  for first = 1, #names, AT_A_TIME do
    local last = math.min(first + AT_A_TIME - 1, #names)
    local before, sums_now = call('HMGET', key, unpack(names, first, last)), { 'HSET', key }
    for i = first, last do
      local n = #sums_now
      sums_now[n + 1], sums_now[n + 2] = names[i], (tonumber(before[i - first + 1] or 0) or 0) + changes[i]
    end
    call(unpack(sums_now))
  end
end

-- count_states(): how many jobs of a queue are in which state.
local function count_states()
  local names, changes = {}, {}
  for queue, row in pairs(deltas) do
    for state, change in pairs(row) do
      if change ~= 0 and state ~= 'ready' then names[#names + 1], changes[#names + 1] = queue .. SEP .. state, change end
    end
  end
  add_up(counts, names, changes)
end

local function tell()
  local minute = math.floor(now / 60000) .. SEP
  local entry = {}
  sum_up()
  for i, one in ipairs(groups) do
    tally(sums, one[2], one[1], one[7])
    entry[i] = { one[1], one[2], one[3], one[4], one[5], table.concat(one[6], SEP) }
  end
  local names, changes = {}, {}
  for queue, row in pairs(sums) do
    for name, sum in pairs(row) do
      if sum > 0 then names[#names + 1], changes[#names + 1] = minute .. queue .. SEP .. name, sum end
    end
  end
  add_up(stats, names, changes)
  if #entry > 0 then call('XADD', events, 'MAXLEN', '~', EVENTS, '*', 'e', cmsgpack.pack({ now, entry })) end
end

-- first_in_line(queue) → the first member of its line, or nothing.
local function first_in_line(queue)
  return call('ZRANGE', ready, '[' .. queue .. SEP, '(' .. queue .. AFTER, 'BYLEX', 'LIMIT', 0, 1)[1]
end

-- reopen(names): these queues may be leased from again, so `heads` has where their lines begin.
local function reopen(names)
  for _, queue in ipairs(names) do
    local first = first_in_line(queue)
    if first then call('ZADD', heads, 'LT', score_of(first, queue), queue) end
  end
end

-- free_limits(): where jobs no longer run that a limit of their queue had counted, the next ones may.
local function free_limits()
  local names, limited = {}, {}
  for queue in pairs(ceased) do names[#names + 1] = queue end
  if #names == 0 then return end
  for i, setting in ipairs(call('HMGET', queues, unpack(names))) do
    if string.find(setting or '', '%d$') then limited[#limited + 1] = names[i] end
  end
  for _, queue in ipairs(limited) do arrivals[queue] = (arrivals[queue] or 0) + ceased[queue] end
  reopen(limited)
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
  count_states()
  tell()
  for key, at in pairs(alarms) do
    if head(key) == at then mail('timer', at) end
  end
  tell_ended()
  if settings_before then free_limits() end
  if next(arrivals) then wake_any(arrivals) end
end
