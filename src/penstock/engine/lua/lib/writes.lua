-- Pending writes. A script reads and checks everything first, then writes in one go and in this order, each key with
-- one variadic command: contents, headers, removals from indexes, lanes, additions to indexes. The header is the truth: what
-- comes after it can be rebuilt from it (reconcile), should a script ever be stopped half way. Nobody is in line as the owner
-- of a lock that does not say so.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local jobs = require 'jobs'
local call = request.call

local M = {}

local stages

function M.reset()
  stages = { {}, {}, {}, {}, {} }
  -- Of a job with lanes an entry may be added and taken out again by one script, so these are kept by name.
  M.later = {}   -- key → member → score, or false to remove it
  M.timer_wakeups = {}   -- `scheduled`, `timers` or `openings` → the earliest time added to it
end

-- command(stage, command, key) → what this command will be given: its length is n.
function M.command(stage, command, key)
  local piles = stages[stage]
  local found = piles[key]
  if not found then
    found = { command, key, n = 2 }
    piles[key] = found
    piles[#piles + 1] = found
  end
  return found
end

local function put(stage, command, key, a, b)
  local found = stages[stage][key] or M.command(stage, command, key)
  local n = found.n + 1
  found[n] = a
  if b then n = n + 1; found[n] = b end
  found.n = n
end

local function set_content(key, field, value) put(1, 'HSET', key, field, value) end

local function remove(key, member) put(3, 'ZREM', key, member) end

function M.delete(key, field) put(3, 'HDEL', key, field) end

local function add(key, score, member) put(5, 'ZADD', key, score, member) end

function M.set(key, field, value) put(5, 'HSET', key, field, value) end

function M.add_later(key, score, member)
  if not M.later[key] then M.later[key] = {} end
  M.later[key][member] = score
end

function M.remove_later(key, member)
  if not M.later[key] then M.later[key] = {} end
  M.later[key][member] = false
end

-- wake_timer_at(key, at): something is due then; whoever keeps the time is told if it is the next.
function M.wake_timer_at(key, at)
  if not M.timer_wakeups[key] or at < M.timer_wakeups[key] then M.timer_wakeups[key] = at end
end

-- save(id, h, packed) → the record, which is the header's own unless it is given. `bare`: the record of a job that was held and is
-- ready; it stays as it is but for its head and its place.
function M.save(id, h, packed)
  if h.bare and h[PRIORITY] == h.kind[PRIORITY] then packed = record.shown_record(h.bare, READY_FRONT, h[SEQ]) end
  if not packed then
    if h.payload and h.payload ~= true and #h.payload >= INLINE then   -- a new one
      set_content(keys.payloads, id, h.payload)
      h.payload = nil
    end
    packed = record.encode(h)
  end
  if h.bare then jobs.rewritten[id], h.bare = packed, nil end
  put(2, 'HSET', keys.jobs, id, packed)
  return packed
end

-- leaving(key, n) → member → true, of those that this script takes out of a sorted set; nothing if these are n, and have no lanes.
function M.leaving(key, n)
  local found, exits = {}, stages[3][key]
  local to = exits and exits.n or 2
  if to == n + 2 and not M.later[key] then return nil end
  for i = 3, to do found[exits[i]] = true end
  for member, score in pairs(M.later[key] or {}) do
    if not score then found[member] = true end
  end
  return found
end

-- forget_cached_head(queue): its place in `heads` is taken out, or becomes a later one; what `meta` says of that is no longer so.
local function forget_cached_head(queue)
  if meta.headed and string.sub(meta.headed, 1, #queue + 1) == queue .. SEP then set_content(keys.meta, 'headed', '') end
end

-- close_queue(queue): nothing of it can be leased, as far as is known.
function M.close_queue(queue)
  forget_cached_head(queue)
  remove(keys.heads, queue)
end

-- head_score(member, queue) → the place of a member of this queue's line as a score of `heads`; the lowest if that cannot be read.
local function head_score(member, queue)
  local at = #queue + 2
  local priority, number = tonumber(string.sub(member, at, at + 1)), tonumber(string.sub(member, at + 2, at + 13), 16)
  return priority and number and priority * HEAD_STEP + number or 0
end

-- precede_entries(): a queue whose line somebody enters is looked at from there on, if not before. It is written before the line, so
-- that wherever a script is stopped nobody in a line is passed over.
local function precede_entries()
  local places, firsts, queue, from, first = stages[5][keys.ready], {}, nil, nil, nil
  for i = 4, places and places.n or 2, 2 do
    local member = places[i]
    if not from or string.sub(member, 1, #from) ~= from then
      queue = string.match(member, '^[^\31]*')
      from, first = queue .. SEP, firsts[queue]
    end
    if not first or member < first then
      first = member
      firsts[queue] = member
    end
  end
  if not from then return end
  local bounds, n = { 'ZADD', keys.heads, 'LT' }, 3
  for name, member in pairs(firsts) do
    bounds[n + 1], bounds[n + 2], n = head_score(member, name), name, n + 2
  end
  call(unpack(bounds, 1, n))
end

function M.flush()
  for key, members in pairs(M.later) do
    for member, score in pairs(members) do
      if score then add(key, score, member) else remove(key, member) end
    end
  end
  for stage = 1, 5 do
    if stage == 5 then precede_entries() end
    for _, found in ipairs(stages[stage]) do
      if found.n > 2 then call(unpack(found, 1, found.n)) end
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
