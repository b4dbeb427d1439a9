-- Candidates: the jobs that may run next.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local jobs = require 'jobs'
local known_jobs = require 'known_jobs'
local writes = require 'writes'
local call = request.call

local M = {}

local SOME = 500   -- values that one command is given

function M.reset()
  M.quota = {}   -- queue with a limit → how many of its jobs may start
  M.was_cut_short = false   -- has a limit kept candidates from being looked at?
  M.may_lease_from = {}   -- queue → is it neither paused nor at its limit? Of those that were looked up.
end

-- read_settings(names, from): reads what is set for these queues, from this one on, if anything ever was for any.
function M.read_settings(names, from)
  for first = from, #names, SOME do
    local last = math.min(first + SOME - 1, #names)
    local settings = meta.settings and call('HMGET', keys.queues, unpack(names, first, last)) or {}
    for i = first, last do
      local queue, setting = names[i], settings[i - first + 1] or ''
      local limit = setting ~= '' and tonumber(string.match(setting, '%d+$'))
      if limit then M.quota[queue] = limit - (call('HGET', keys.counts, queue .. SEP .. 'running') or 0) end
      M.may_lease_from[queue] = queue ~= '' and not string.find(setting, '^paused') and not (limit and M.quota[queue] <= 0)
    end
  end
end

-- open_queues(names) → those of them that may be leased from.
function M.open_queues(names)
  local unknown, open = {}, {}
  for _, queue in ipairs(names) do
    if M.may_lease_from[queue] == nil then unknown[#unknown + 1] = queue end
  end
  M.read_settings(unknown, 1)
  for _, queue in ipairs(names) do
    if M.may_lease_from[queue] then open[#open + 1] = queue end
  end
  return open
end

-- read_line(queue, from, n) → the first n members of this line, from here on, that this worker may take, and whether these are all; not more
-- than its limit allows.
function M.read_line(queue, from, n)
  local most = math.min(n, M.quota[queue] or n)
  local members = known_jobs.unknown_here and known_jobs.known_members(queue, from, most)
    or call('ZRANGE', keys.ready, from, '(' .. queue .. AFTER, 'BYLEX', 'LIMIT', '0', most)
  if most < n and #members == most then M.was_cut_short = true end
  return members, #members < most
end

-- take(ids, member, at): one more candidate; its id begins there in its member of `ready`, which is remembered. A second one is a
-- stray.
function M.take(ids, member, at)
  local id, known = string.sub(member, at), jobs.ready_members
  if known[id] then return writes.remove_later(keys.ready, member) end   -- not one of those that lease counts: see raise_heads
  known[id] = member
  ids[#ids + 1] = id
end

-- in_order(names, want) → the first jobs of these queues, one queue after the other, and whether there may be more.
function M.in_order(names, want)
  local ids = {}
  for _, queue in ipairs(names) do
    if #ids == want then break end
    local members, at = M.read_line(queue, '[' .. queue .. SEP, want - #ids), #queue + 17
    for i = 1, #members do M.take(ids, members[i], at) end
  end
  return ids, #ids == want
end

return M
