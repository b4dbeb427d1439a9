-- Repairing lanes. Who has a slot and who waits follows from the headers of jobs, so `holders` and `held` are made to
-- agree with these, and the numbers in `lanes` with those two. The tokens of a rate are lost with the record of a
-- lane. A lock that belongs to a job has no entry in `holders`: its record names the job (lib/locks.lua). `h` is a
-- header.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local jobs = require 'jobs'
local lanes = require 'lanes'
local lock_owners = require 'lock_owners'
local call = request.call

local M = {}

local function contains(list, value)
  for _, other in ipairs(list) do
    if other == value then return true end
  end
end

-- holds(h, i) → does this job have a slot of its lane at this position?
function M.holds(h, i)
  return h[STATE] == 'running' or (h[TURN] == i and (jobs.waits(h) or h[STATE] == 'dead'))
end

-- owned_lock(name) → the queue, the owner's id, how many jobs wait, and the owner's priority; nothing if this is no
-- lock with an owner, or is not stored exactly as lib/lock_owners.lua does it.
local function owned_lock(name)
  if lanes.stored[name] == nil then lanes.fetch({ name }) end
  local text = lanes.stored[name] or ''
  local values = lanes.unpack_list(text)
  local queue, waiting, priority, id = values[6], values[7], values[8], values[9]
  if type(queue) ~= 'string' or type(waiting) ~= 'number' then return nil end
  if type(priority) ~= 'number' or type(id) ~= 'string' then return nil end
  if #id > 31 or priority < 0 or priority > 99 or waiting < 0 then return nil end
  local start = lock_owners.start_of(lock_owners.forms(queue), waiting)
  if text ~= start .. lock_owners.owner_mark(priority, id) .. id then return nil end
  return queue, id, waiting, priority
end

-- is_own(id, h) → does the job's lock belong to it, or did it when this call began?
function M.is_own(id, h)
  if not h[LANES][1] then return false end
  local name = record.lane_name(h[LANES][1])
  local lane = lanes.decoded[name]
  if lane then return lane.owner == id end
  local queue, owner = owned_lock(name)
  return owner == id and queue == h[QUEUE] and not h[LANES][2]
end

-- is_holder(member, id, h) → is this member of `holders` right: does the job have a slot of the lane?
function M.is_holder(member, id, h)
  if h and M.is_own(id, h) then return false end
  for i, spec in ipairs(h and h[LANES] or {}) do
    if M.holds(h, i) and record.lane_name(spec) .. SEP .. id == member then return true end
  end
end

-- is_known_waiter(h) → is this job held by a lock that another job owns, and that says that jobs wait?
local function is_known_waiter(h)
  local queue, _, waiting = owned_lock(record.lane_name(h[LANES][1]))
  return h[STATE] == 'held' and not h[LANES][2] and queue == h[QUEUE] and waiting > 0
end

-- introduce(id, h) → how many lanes did not know that the job has a slot, waits, or is shown. Now they do:
-- recounted() counts correctly once every lane that is in use has a record.
function M.introduce(id, h)
  local mended = 0
  if is_known_waiter(h) then return 0 end
  for i, spec in ipairs(h[LANES]) do
    local is_home = i == h[HOME] and (h[STATE] == 'ready' or h[STATE] == 'held')
    local lane = (is_home or M.holds(h, i)) and lanes.of(spec)
    local row = is_home and lanes.row(lane, h[QUEUE])
    if M.holds(h, i) and lane.use < 1 then lane.use, mended = 1, mended + 1 end
    if row and h[STATE] == 'held' and row.waiting < 1 then row.waiting, mended = 1, mended + 1 end
    if row and h[STATE] == 'ready' and not contains(row.shown, id) then
      row.shown[#row.shown + 1] = id
      row.worst, mended = math.max(row.worst, h[PRIORITY]), mended + 1
    end
  end
  return mended
end

-- count_members(key, start) → how many members of a lexical set begin with start SEP.
local function count_members(key, start)
  return call('ZLEXCOUNT', key, '[' .. start .. SEP, '(' .. start .. AFTER)
end

-- count_waiting(lane): counts the jobs of each queue in `held`.
local function count_waiting(lane)
  local from, to = '[' .. lane.name .. SEP, '(' .. lane.name .. AFTER
  for _, row in pairs(lane.lines) do row.waiting = 0 end
  while true do
    local member = call('ZRANGE', keys.held, from, to, 'BYLEX', 'LIMIT', 0, 1)[1]
    if not member then return end
    local queue = string.match(member, '^[^\31]*\31([^\31]*)')
    local row_start = lane.name .. SEP .. queue
    lanes.row(lane, queue).waiting = count_members(keys.held, row_start)
    from = '[' .. row_start .. AFTER
  end
end

-- check_shown(lane): it shows only jobs that are ready, and that it is the home of. None is worse than `worst`.
local function check_shown(lane)
  for queue, row in pairs(lane.lines) do
    local shown, worst, headers = {}, 0, jobs.read(row.shown)
    for i, id in ipairs(row.shown) do
      local h = headers[i]
      local is_here = h and h[STATE] == 'ready' and h[QUEUE] == queue
        and record.lane_name(h[LANES][h[HOME]] or '') == lane.name
      if is_here and not contains(shown, id) then
        shown[#shown + 1] = id
        worst = math.max(worst, h[PRIORITY])
      end
    end
    row.shown, row.worst = shown, math.max(worst, #shown > 0 and row.worst or 0)
  end
end

-- is_right(name) → is this a lock with an owner, of which all is true that is stored?
local function is_right(name)
  local queue, id, waiting, priority = owned_lock(name)
  local h = queue and jobs.read({ id })[1]
  if not h or h[QUEUE] ~= queue or h[PRIORITY] ~= priority then return false end
  if not h.is_owner and h[STATE] ~= 'running' then return false end
  if #h[LANES] ~= 1 or h[LANES][1] ~= name then return false end
  local of_lock, of_queue = count_members(keys.held, name), count_members(keys.held, name .. SEP .. queue)
  return of_lock == waiting and of_lock == of_queue
end

-- recounted(name) → was what is stored of the lane wrong? It is counted anew, and shows its next waiters if it has
-- room.
function M.recounted(name)
  if is_right(name) then return false end
  local lane = lanes.named(name)
  local before = lanes.encode(lane)
  lane.use = count_members(keys.holders, name)
  if lane.unlisted and not call('ZSCORE', keys.holders, name .. SEP .. lane.unlisted) then lane.use = lane.use + 1 end
  count_waiting(lane)
  check_shown(lane)
  lanes.refill(lane)
  local after = lanes.encode(lane)
  return before ~= after or (after == nil and not lane.had_rate)   -- a lane with a rate is forgotten when it is full
end

return M
