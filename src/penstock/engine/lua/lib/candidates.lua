-- Candidates: the jobs that may run next, and the queues that they may come from.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local jobs = require 'jobs'
local known_jobs = require 'known_jobs'
local writes = require 'writes'
local call = request.call

local M = {}

local NAMES_PER_COMMAND = 500

function M.reset()
  M.quota = {}              -- queue that has a limit → how many more of its jobs may start
  M.may_lease_from = {}     -- queue → is it neither paused nor at its limit? Of the queues that were looked up.
  M.was_cut_short = false   -- did a limit keep jobs out of the candidates?
end

-- read_settings(names, from): looks up the queues from this position on. If no queue ever had a setting, nothing is
-- read.
function M.read_settings(names, from)
  for first = from, #names, NAMES_PER_COMMAND do
    local last = math.min(first + NAMES_PER_COMMAND - 1, #names)
    local settings = meta.settings and call('HMGET', keys.queues, unpack(names, first, last)) or {}
    for i = first, last do
      local queue, setting = names[i], settings[i - first + 1] or ''
      local limit = setting ~= '' and tonumber(string.match(setting, '%d+$'))
      if limit then M.quota[queue] = limit - (call('HGET', keys.counts, queue .. SEP .. 'running') or 0) end
      local is_at_limit = limit and M.quota[queue] <= 0
      M.may_lease_from[queue] = queue ~= '' and not string.find(setting, '^paused') and not is_at_limit
    end
  end
end

-- open_queues(names) → the queues of these names that may be leased from.
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

-- read_line(queue, from, n) → up to n members of this queue's line that this worker may take, beginning at `from`;
-- and whether the line has no more. The limit of the queue may allow fewer.
function M.read_line(queue, from, n)
  local most = math.min(n, M.quota[queue] or n)
  local members
  if known_jobs.unknown_here then
    members = known_jobs.known_members(queue, from, most)
  else
    members = call('ZRANGE', keys.ready, from, '(' .. queue .. AFTER, 'BYLEX', 'LIMIT', '0', most)
  end
  if most < n and #members == most then M.was_cut_short = true end
  return members, #members < most
end

-- take(ids, members, from, to, id_at): adds the jobs of these members of `ready` to the candidates. Their ids begin at
-- id_at in the members, which are remembered. No job should have two members: the second one is removed. It goes to
-- remove_later, because queue_heads.update() counts what lease removes at once.
function M.take(ids, members, from, to, id_at)
  local sub, known, n = string.sub, jobs.ready_members, #ids
  for i = from, to do
    local member = members[i]
    local id = sub(member, id_at)
    if known[id] then
      writes.remove_later(keys.ready, member)
    else
      known[id] = member
      n = n + 1
      ids[n] = id
    end
  end
end

-- in_order(names, want) → the first jobs of these queues, one queue after the other; and whether there may be more.
function M.in_order(names, want)
  local ids = {}
  for _, queue in ipairs(names) do
    if #ids == want then break end
    local members = M.read_line(queue, '[' .. queue .. SEP, want - #ids)
    M.take(ids, members, 1, #members, #queue + 17)   -- behind queue and rank
  end
  return ids, #ids == want
end

return M
