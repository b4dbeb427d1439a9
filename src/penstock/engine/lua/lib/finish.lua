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

-- add_up(key, front, sheet): adds these to numbers of a hash, whose fields are named so: front, queue, name. Many, as of a page of
-- jobs of many queues, take two commands for all.
local AT_A_TIME = 1000
local function add_up(key, front, sheet)
  local names, changes, n = {}, {}, 0
  for name, row in pairs(sheet) do
    local back = SEP .. name
    for queue, change in pairs(row) do
      if change ~= 0 then
        n = n + 1
        names[n] = front .. queue .. back
        changes[n] = change
      end
    end
  end
  if n <= 2 then
    for i = 1, n do call('HINCRBY', key, names[i], changes[i]) end
    return
  end
  for first = 1, n, AT_A_TIME do
    local last = math.min(first + AT_A_TIME - 1, n)
    local before, sums_now, at = call('HMGET', key, unpack(names, first, last)), { 'HSET', key }, 2
    for i = first, last do
      local was, change = before[i - first + 1], changes[i]
      at = at + 2
      sums_now[at - 1] = names[i]
      sums_now[at] = digits(was and (tonumber(was) or 0) + change or change)
    end
    call(unpack(sums_now, 1, at))
  end
end

local function tell()
  local entry = {}
  add_measured()
  for i, one in ipairs(groups) do
    tally(sums, one[1], one[2], one[7])
    one[6], one[7] = table.concat(one[6], SEP), nil
    entry[i] = one
  end
  add_up(stats, digits(math.floor(now / 60000)) .. SEP, sums)
  if entry[1] then call('XADD', events, 'MAXLEN', '~', EVENTS, '*', 'e', cmsgpack.pack({ now, entry })) end
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
  deltas.ready = nil   -- how many these are the line itself tells
  add_up(counts, '', deltas)
  tell()
  for key, at in pairs(alarms) do
    if head(key) == at then mail('timer', at) end
  end
  tell_ended()
  if settings_before then free_limits() end
  if next(arrivals) then wake_any(arrivals) end
end
