-- The end of a script: lanes show their next jobs, everything is written, and those concerned are told.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local batch_end = require 'batch_end'
local batches = require 'batches'
local counters = require 'counters'
local create = require 'create'
local jobs = require 'jobs'
local lane_turns = require 'lane_turns'
local lanes = require 'lanes'
local messages = require 'messages'
local save_lanes = require 'save_lanes'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

local LETTERS = 256   -- letters that one script sends at most; instead of more, one goes to the mailbox that all clients listen to
local AT_A_TIME = 1000

-- tell_ended(): those who wait for jobs are told which ones finished, in one letter each.
local function tell_ended()
  if #transition.finished_ids == 0 or call('HLEN', keys.waiting) <= 1 then return end
  local letters, awaited, n = {}, {}, 0
  for i, clients in ipairs(call('HMGET', keys.waiting, unpack(transition.finished_ids))) do
    for client in string.gmatch(clients or '', '[^\31]+') do
      if not letters[client] then n = n + 1 end
      letters[client] = (letters[client] or 'end') .. SEP .. transition.finished_ids[i]
    end
    if clients then
      call('HDEL', keys.waiting, transition.finished_ids[i])
      awaited[#awaited + 1] = transition.finished_ids[i]
    end
  end
  if n > LETTERS then letters = { crons = letters.crons, ['*'] = 'end' .. SEP .. table.concat(awaited, SEP) } end
  for client, text in pairs(letters) do messages.send('to:' .. client, text) end
end

-- add_up(key, front, sheet): adds these to numbers of a hash, whose fields are named so: front, queue, name. Many, as of a page of
-- jobs of many queues, take two commands for all.
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
      sums_now[at] = was and (tonumber(was) or 0) + change or change
    end
    call(unpack(sums_now, 1, at))
  end
end

local function tell()
  local entry = {}
  for i, one in ipairs(transition.event_groups) do
    counters.add_to(counters.stat_changes, one[1], one[2], one[7])
    one[6], one[7] = table.concat(one[6], SEP), nil
    entry[i] = one
  end
  add_up(keys.stats, transition.digits(math.floor(request.now / 60000)) .. SEP, counters.stat_changes)
  if entry[1] then call('XADD', keys.events, 'MAXLEN', '~', EVENTS, '*', 'e', cmsgpack.pack({ request.now, entry })) end
end

-- first_in_line(queue) → the first member of its line, or nothing.
function M.first_in_line(queue)
  return call('ZRANGE', keys.ready, '[' .. queue .. SEP, '(' .. queue .. AFTER, 'BYLEX', 'LIMIT', 0, 1)[1]
end

-- reopen_queues(names): these queues may be leased from again, so `heads` has where their lines begin.
function M.reopen_queues(names)
  for _, queue in ipairs(names) do
    local first = M.first_in_line(queue)
    if first then call('ZADD', keys.heads, 'LT', writes.head_score(first, queue), queue) end
  end
end

-- free_limits(): where jobs no longer run that a limit of their queue had counted, the next ones may.
local function free_limits()
  local names, limited = {}, {}
  for queue in pairs(counters.stopped_running) do names[#names + 1] = queue end
  if #names == 0 then return end
  for i, setting in ipairs(call('HMGET', keys.queues, unpack(names))) do
    if string.find(setting or '', '%d$') then limited[#limited + 1] = names[i] end
  end
  for _, queue in ipairs(limited) do counters.became_ready[queue] = (counters.became_ready[queue] or 0) + counters.stopped_running[queue] end
  M.reopen_queues(limited)
end

-- write_all(): makes all pending writes, then the counts, the event and the wake-ups. The last thing a script does.
function M.write_all()
  if batches.touched[1] then batch_end.end_batches() end
  if lanes.to_refill[1] then
    lane_turns.show_waiters(lanes.to_refill)
  end
  if next(lanes.stored) then save_lanes.save_lanes() end
  if transition.seq then writes.set_content(keys.meta, 'seq', transition.seq) end
  writes.flush()
  counters.add_up()
  counters.count_changes.ready = nil   -- how many these are the line itself tells
  add_up(keys.counts, '', counters.count_changes)
  tell()
  for key, at in pairs(writes.timer_wakeups) do
    if jobs.first_score(key) == at then messages.send('timer', at) end
  end
  tell_ended()
  if meta.settings then free_limits() end
  if next(counters.became_ready) then messages.wake_workers(counters.became_ready) end
end

-- write_created(): counts what was created, makes its queues known, and finishes.
function M.write_created()
  if create.count > 0 then writes.set_content(keys.meta, 'accepted', (meta.accepted or 0) + create.count) end
  for queue in pairs(create.queues) do
    if not create.known_queues[queue] then call('HSETNX', keys.queues, queue, '') end
  end
  M.write_all()
end

return M
