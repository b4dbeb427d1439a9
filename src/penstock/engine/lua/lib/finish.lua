-- The end of a script: lanes show their next jobs, everything is written, and those concerned get a message.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local batch_end = require 'batch_end'
local batches = require 'batches'
local counters = require 'counters'
local create = require 'create'
local events = require 'events'
local jobs = require 'jobs'
local lane_turns = require 'lane_turns'
local lanes = require 'lanes'
local messages = require 'messages'
local save_lanes = require 'save_lanes'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

local MAX_MESSAGES = 256   -- that one script sends to clients; instead of more, it sends one to all clients
local MAX_FIELDS = 1000    -- that one command is given

-- messages_of(ids) → client → the message with the jobs that it waits for; how many clients there are; and the jobs
-- that anybody waits for.
local function messages_of(ids)
  local message_of, awaited, n = {}, {}, 0
  for i, clients in ipairs(call('HMGET', keys.waiting, unpack(ids))) do
    for client in string.gmatch(clients or '', '[^\31]+') do
      if not message_of[client] then n = n + 1 end
      message_of[client] = (message_of[client] or 'end') .. SEP .. ids[i]
    end
    if clients then awaited[#awaited + 1] = ids[i] end
  end
  return message_of, n, awaited
end

-- notify_clients(): each client that waits for jobs which finished gets one message with all of them.
local function notify_clients()
  if #transition.finished_ids == 0 or call('HLEN', keys.waiting) <= 1 then return end
  local message_of, n, awaited = messages_of(transition.finished_ids)
  if awaited[1] then call('HDEL', keys.waiting, unpack(awaited)) end
  if n > MAX_MESSAGES then
    message_of = { crons = message_of.crons, ['*'] = 'end' .. SEP .. table.concat(awaited, SEP) }
  end
  for client, message in pairs(message_of) do messages.send('to:' .. client, message) end
end

-- fields_of(prefix, sheet) → the fields of these numbers (prefix, queue, name), and what to add to each.
local function fields_of(prefix, sheet)
  local fields, changes, n = {}, {}, 0
  for name, row in pairs(sheet) do
    local suffix = SEP .. name
    for queue, change in pairs(row) do
      if change ~= 0 then
        n = n + 1
        fields[n] = prefix .. queue .. suffix
        changes[n] = change
      end
    end
  end
  return fields, changes, n
end

-- add_up(key, prefix, sheet): adds these numbers to those of a hash. Many of them, as of a page of jobs of many queues,
-- take two commands and not one for each.
local function add_up(key, prefix, sheet)
  local fields, changes, n = fields_of(prefix, sheet)
  if n <= 2 then
    for i = 1, n do call('HINCRBY', key, fields[i], changes[i]) end
    return
  end
  for first = 1, n, MAX_FIELDS do
    local last = math.min(first + MAX_FIELDS - 1, n)
    local stored, command, at = call('HMGET', key, unpack(fields, first, last)), { 'HSET', key }, 2
    for i = first, last do
      local before, change = stored[i - first + 1], changes[i]
      at = at + 2
      command[at - 1] = fields[i]
      command[at] = before and (tonumber(before) or 0) + change or change   -- the server writes it faster as a number
    end
    call(unpack(command, 1, at))
  end
end

-- write_event(): the event of this call is added to the stream, and its groups count in the statistics.
local function write_event()
  local lines = {}
  for i, group in ipairs(events.groups) do
    counters.add_to(counters.stat_changes, group[1], group[2], group[7])
    group[6], group[7] = table.concat(group[6], SEP), nil
    lines[i] = group
  end
  add_up(keys.stats, writes.digits(math.floor(request.now / 60000)) .. SEP, counters.stat_changes)
  if lines[1] then
    call('XADD', keys.events, 'MAXLEN', '~', EVENTS, '*', 'e', cmsgpack.pack({ request.now, lines }))
  end
end

-- first_in_line(queue) → the first member of its line, or nothing.
function M.first_in_line(queue)
  return call('ZRANGE', keys.ready, '[' .. queue .. SEP, '(' .. queue .. AFTER, 'BYLEX', 'LIMIT', 0, 1)[1]
end

-- reopen_queues(names): these queues may be leased from again, so `heads` gets the first place of their lines.
function M.reopen_queues(names)
  for _, queue in ipairs(names) do
    local first = M.first_in_line(queue)
    if first then call('ZADD', keys.heads, 'LT', writes.head_score(first, queue), queue) end
  end
end

-- reopen_limited_queues(): where jobs stopped running in a queue that limits how many run, the next ones may start.
local function reopen_limited_queues()
  local names, limited = {}, {}
  for queue in pairs(counters.stopped_running) do names[#names + 1] = queue end
  if #names == 0 then return end
  for i, setting in ipairs(call('HMGET', keys.queues, unpack(names))) do
    if string.find(setting or '', '%d$') then limited[#limited + 1] = names[i] end
  end
  for _, queue in ipairs(limited) do
    local ready = counters.became_ready[queue] or 0
    counters.became_ready[queue] = ready + counters.stopped_running[queue]
  end
  M.reopen_queues(limited)
end

-- wake_timers(): if something is due earlier than anything before, the timers hear of it.
local function wake_timers()
  for key, at in pairs(writes.timer_wakeups) do
    if jobs.first_score(key) == at then messages.send('timer', at) end
  end
end

-- write_all(): all pending writes, then the counts, the event and the messages. A script ends with it.
function M.write_all()
  if batches.touched[1] then batch_end.end_batches() end
  if lanes.to_refill[1] then lane_turns.show_waiters(lanes.to_refill) end
  if next(lanes.stored) then save_lanes.save_lanes() end
  if transition.seq then writes.set_content(keys.meta, 'seq', transition.seq) end
  writes.flush()
  counters.add_up()
  counters.count_changes.ready = nil   -- how many are ready follows from the lines themselves
  add_up(keys.counts, '', counters.count_changes)
  write_event()
  wake_timers()
  notify_clients()
  if meta.settings then reopen_limited_queues() end
  if next(counters.became_ready) then messages.wake_workers(counters.became_ready) end
end

-- write_created(): the same, and the jobs that were created are counted and their queues become known.
function M.write_created()
  if create.count > 0 then writes.set_content(keys.meta, 'accepted', (meta.accepted or 0) + create.count) end
  for queue in pairs(create.queues) do
    if not create.known_queues[queue] then call('HSETNX', keys.queues, queue, '') end
  end
  M.write_all()
end

return M
