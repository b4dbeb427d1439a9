-- Mending lanes: who holds and who waits is in the headers, `holders` and `held` follow from these, and the numbers in
-- `lanes` from those. What a rate had left is lost with a lane's record. A lock that belongs to a job says so itself, and has no
-- entry of `holders`.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local jobs = require 'jobs'
local lanes = require 'lanes'
local lock_owners = require 'lock_owners'
local call = request.call

local M = {}

-- holds(h, i) → has this job a slot of that lane?
function M.holds(h, i)
  return h[STATE] == 'running' or (h[TURN] == i and (jobs.waits(h) or h[STATE] == 'dead'))
end

-- own_lock(name) → queue, id of the owner, how many wait and its priority, if this lane is a lock that belongs to a job, and stored
-- just as such a lock is (lib/locks.lua).
local function own_lock(name)
  if lanes.stored[name] == nil then lanes.fetch({ name }) end
  local text = lanes.stored[name] or ''
  local found = lanes.unpack_list(text)
  local queue, waiting_there, priority, id = found[6], found[7], found[8], found[9]
  if type(queue) .. type(waiting_there) .. type(priority) .. type(id) ~= 'stringnumbernumberstring' then return nil end
  if #id > 31 or priority < 0 or priority > 99 or waiting_there < 0 then return nil end
  local right = lock_owners.start_of(lock_owners.forms(queue), waiting_there) .. lock_owners.owner_mark(priority, id) .. id
  if text ~= right then return nil end
  return queue, id, waiting_there, priority
end

-- is_own(id, h) → does this job's lock belong to it, or did it before this script?
function M.is_own(id, h)
  if not h[LANES][1] then return false end
  local name = record.lane_name(h[LANES][1])
  local lane = lanes.decoded[name]
  if lane then return lane.owner == id end
  local queue, owner = own_lock(name)
  return owner == id and queue == h[QUEUE] and not h[LANES][2]
end

-- is_holder(member) → does it name a job, and a lane that this job has a slot of?
function M.is_holder(member, id, h)
  if h and M.is_own(id, h) then return false end
  for i, spec in ipairs(h and h[LANES] or {}) do
    if M.holds(h, i) and record.lane_name(spec) .. SEP .. id == member then return true end
  end
end

-- has(list, one) → is it in there?
local function has(list, one)
  for _, other in ipairs(list) do
    if other == one then return true end
  end
end

-- introduce(id, h) → how many lanes had not heard of a job that holds or waits in them, as far as they can tell. How many there
-- are is counted afterwards, once each lane that should have a record has one.
function M.introduce(id, h)
  local strange = 0
  local queue, _, waiting_there = own_lock(record.lane_name(h[LANES][1]))
  if h[STATE] == 'held' and not h[LANES][2] and queue == h[QUEUE] and waiting_there > 0 then return 0 end
  for i, spec in ipairs(h[LANES]) do
    local home = i == h[HOME] and (h[STATE] == 'ready' or h[STATE] == 'held')
    local lane = (home or M.holds(h, i)) and lanes.of(spec)
    local row = home and lanes.row(lane, h[QUEUE])
    if M.holds(h, i) and lane.use < 1 then lane.use, strange = 1, strange + 1 end
    if row and h[STATE] == 'held' and row.waiting < 1 then row.waiting, strange = 1, strange + 1 end
    if row and h[STATE] == 'ready' and not has(row.shown, id) then
      row.shown[#row.shown + 1], row.worst, strange = id, math.max(row.worst, h[PRIORITY]), strange + 1
    end
  end
  return strange
end

-- count_waiting(lane): of each queue that has any in `held`.
local function count_waiting(lane)
  local from = '[' .. lane.name .. SEP
  for _, row in pairs(lane.lines) do row.waiting = 0 end
  while true do
    local member = call('ZRANGE', keys.held, from, '(' .. lane.name .. AFTER, 'BYLEX', 'LIMIT', 0, 1)[1]
    if not member then return end
    local line_name = lane.name .. SEP .. string.match(member, '^[^\31]*\31([^\31]*)')
    local row = lanes.row(lane, string.sub(line_name, #lane.name + 2))
    row.waiting = call('ZLEXCOUNT', keys.held, '[' .. line_name .. SEP, '(' .. line_name .. AFTER)
    from = '[' .. line_name .. AFTER
  end
end

-- check_shown(lane): only jobs that are in `ready` under this lane, and not better than the worst of them.
local function check_shown(lane)
  for queue, row in pairs(lane.lines) do
    local shown, worst, headers = {}, 0, jobs.read(row.shown)
    for i, id in ipairs(row.shown) do
      local h = headers[i]
      local here = h and h[STATE] == 'ready' and h[QUEUE] == queue and record.lane_name(h[LANES][h[HOME]] or '') == lane.name
      if here and not has(shown, id) then
        shown[#shown + 1], worst = id, math.max(worst, h[PRIORITY])
      end
    end
    row.shown, row.worst = shown, math.max(worst, #shown > 0 and row.worst or 0)
  end
end

-- is_right(name) → is what a lock says that belongs to a job as it should be?
local function is_right(name)
  local queue, id, waiting_there, priority = own_lock(name)
  local h = queue and jobs.read({ id })[1]
  if not h or not (h.is_owner or h[STATE] == 'running') or h[QUEUE] ~= queue or h[PRIORITY] ~= priority then return false end
  if #h[LANES] ~= 1 or h[LANES][1] ~= name then return false end
  local all = call('ZLEXCOUNT', keys.held, '[' .. name .. SEP, '(' .. name .. AFTER)
  local line_name = name .. SEP .. queue
  return all == waiting_there and all == call('ZLEXCOUNT', keys.held, '[' .. line_name .. SEP, '(' .. line_name .. AFTER)
end

-- recounted(name) → was what is stored of a lane wrong? It shows its next waiters if it has room.
function M.recounted(name)
  if is_right(name) then return false end
  local lane = lanes.named(name)
  local before = lanes.encode(lane)
  lane.use = call('ZLEXCOUNT', keys.holders, '[' .. name .. SEP, '(' .. name .. AFTER)
  if lane.unlisted and not call('ZSCORE', keys.holders, name .. SEP .. lane.unlisted) then lane.use = lane.use + 1 end
  count_waiting(lane)
  check_shown(lane)
  lanes.refill(lane)
  local after = lanes.encode(lane)
  return before ~= after or (after == nil and not lane.had_rate)   -- one with a rate is merely forgotten when it is full
end

return M
