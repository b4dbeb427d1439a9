-- Pending writes. A script reads and checks everything first. Then flush() writes everything in one go: stage by
-- stage, and in a stage each key with one command. The stages:
--   1  contents (payloads, results, …) and fields of `meta`
--   2  records
--   3  removals
--   4  lanes
--   5  additions to indexes
-- The record is the truth, and what follows it can be rebuilt from it (verbs/reconcile.lua), if a script is ever
-- stopped half way. Lanes come before additions, so that nobody is in line as the owner of a lock that does not say
-- so. `h` is a header.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local jobs = require 'jobs'
local call = request.call

local M = {}

local stages, known_digits

function M.reset()
  stages = { {}, {}, {}, {}, {} }   -- stage → its commands in their order; also by key
  known_digits = {}                 -- number → text
  -- One script may add an entry for a job with lanes and remove it again, so these are kept by member until flush().
  M.later = {}           -- key → member → score, or false to remove it
  M.timer_wakeups = {}   -- `scheduled`, `timers` or `openings` → the earliest time that was added to it
end

-- digits(n) → a time as text, made once: the server would make it anew for each job.
function M.digits(n)
  local text = known_digits[n]
  if not text then
    text = string.format('%.0f', n)
    known_digits[n] = text
  end
  return text
end

-- command(stage, command, key) → the pending command of this stage for this key, as a list: its name, the key and
-- its other arguments. `n` is the length of the list. Hot loops append to the list themselves, and set n at their end.
function M.command(stage, command, key)
  local commands = stages[stage]
  local pending = commands[key]
  if not pending then
    pending = { command, key, n = 2 }
    commands[key] = pending
    commands[#commands + 1] = pending
  end
  return pending
end

-- put(stage, command, key, first, second): appends one argument or two to this command.
local function put(stage, command, key, first, second)
  local pending = stages[stage][key] or M.command(stage, command, key)
  local n = pending.n + 1
  pending[n] = first
  if second then
    n = n + 1
    pending[n] = second
  end
  pending.n = n
end

-- Short forms of put(). set_content() sets a field of a hash before the records are written, and set() after them.

local function set_content(key, field, value) put(1, 'HSET', key, field, value) end

local function remove(key, member) put(3, 'ZREM', key, member) end

function M.delete(key, field) put(3, 'HDEL', key, field) end

local function add(key, score, member) put(5, 'ZADD', key, score, member) end

function M.set(key, field, value) put(5, 'HSET', key, field, value) end

-- add_later(key, score, member), remove_later(key, member): like add and remove, but of several writes of one member
-- only the last one is made.
function M.add_later(key, score, member)
  if not M.later[key] then M.later[key] = {} end
  M.later[key][member] = score
end

function M.remove_later(key, member)
  if not M.later[key] then M.later[key] = {} end
  M.later[key][member] = false
end

-- wake_timer_at(key, time): something in this index is due then. The timers get a message if nothing is due earlier.
function M.wake_timer_at(key, time)
  if not M.timer_wakeups[key] or time < M.timer_wakeups[key] then M.timer_wakeups[key] = time end
end

-- save(id, h, packed) → the record of this job, which will be written: `packed`, or else what is made of the header.
-- If the job was held and is ready now, `h.bare` may be its record before: of that only HEAD and `seq` change, unless
-- its batch changed its priority.
function M.save(id, h, packed)
  if h.bare and h[PRIORITY] == h.kind[PRIORITY] then packed = record.shown_record(h.bare, READY_FRONT, h[SEQ]) end
  if not packed then
    if h.payload and h.payload ~= true and #h.payload >= INLINE then   -- of a new job
      set_content(keys.payloads, id, h.payload)
      h.payload = nil
    end
    packed = record.encode(h)
  end
  if h.bare then
    jobs.rewritten[id] = packed
    h.bare = nil
  end
  put(2, 'HSET', keys.jobs, id, packed)
  return packed
end

-- leaving(key, n) → the members that this script removes from a sorted set, as member → true. Nothing if it
-- removes n of them and none by remove_later(): then the caller knows them.
function M.leaving(key, n)
  local removal, members_later = stages[3][key], M.later[key]
  local last = removal and removal.n or 2
  if last == n + 2 and not members_later then return nil end
  local members = {}
  for i = 3, last do members[removal[i]] = true end
  for member, score in pairs(members_later or {}) do
    if not score then members[member] = true end
  end
  return members
end

-- forget_cached_head(queue): the place of this queue in `heads` is removed, or becomes a later one. So `meta` may not
-- say any more that it is there (see lower_head in lib/enqueue_plain.lua).
local function forget_cached_head(queue)
  if not meta.headed or string.sub(meta.headed, 1, #queue + 1) ~= queue .. SEP then return end
  set_content(keys.meta, 'headed', '')
end

-- close_queue(queue): nothing can be leased from this queue, as far as is known.
function M.close_queue(queue)
  forget_cached_head(queue)
  remove(keys.heads, queue)
end

-- head_score(member, queue) → the place of this member of `ready` as a score of `heads`; 0, the first one, if it
-- cannot be read.
local function head_score(member, queue)
  local at = #queue + 2   -- a rank: two digits for the priority, then twelve hexadecimal ones for the place
  local priority = tonumber(string.sub(member, at, at + 1))
  local number = tonumber(string.sub(member, at + 2, at + 13), 16)
  return priority and number and priority * HEAD_STEP + number or 0
end

-- first_entries() → the first of the members that this script adds to `ready`, by queue.
local function first_entries()
  local addition = stages[5][keys.ready]
  local firsts = {}
  local queue, queue_start, first   -- of the previous member
  for i = 4, addition and addition.n or 2, 2 do
    local member = addition[i]
    if not queue_start or string.sub(member, 1, #queue_start) ~= queue_start then
      queue = string.match(member, '^[^\31]*')
      queue_start = queue .. SEP
      first = firsts[queue]
    end
    if not first or member < first then
      first = member
      firsts[queue] = member
    end
  end
  return firsts
end

-- lower_heads(): sees to it that no queue's place in `heads` comes after a job that enters its line. It is written
-- before the line, so that wherever a script is stopped, no job in a line is passed over.
local function lower_heads()
  local firsts = first_entries()
  if not next(firsts) then return end
  local command, n = { 'ZADD', keys.heads, 'LT' }, 3
  for queue, member in pairs(firsts) do
    command[n + 1] = head_score(member, queue)
    command[n + 2] = queue
    n = n + 2
  end
  call(unpack(command, 1, n))
end

-- flush(): writes everything.
function M.flush()
  for key, members in pairs(M.later) do
    for member, score in pairs(members) do
      if score then add(key, score, member) else remove(key, member) end
    end
  end
  for stage = 1, 5 do
    if stage == 5 then lower_heads() end
    for _, pending in ipairs(stages[stage]) do
      if pending.n > 2 then call(unpack(pending, 1, pending.n)) end
    end
  end
end

M.put = put
M.set_content = set_content
M.remove = remove
M.add = add
M.forget_cached_head = forget_cached_head
M.head_score = head_score

return M
