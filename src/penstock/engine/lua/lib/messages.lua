-- Messages to workers, clients and timers, by sharded pub/sub.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local call = request.call

local M = {}

local MAX_WOKEN = 8         -- workers for each queue that got jobs
local MAX_LOOKED_AT = 500   -- idle workers, while workers differ in the tasks that they know

-- channel(name) → the channel of this name in the namespace: `to:` and a worker or client, or `timer`.
function M.channel(name) return string.sub(keys.meta, 1, -5) .. name end   -- 5: without 'meta'

-- send(name, text) → how many subscribers got this message.
function M.send(name, text) return call('SPUBLISH', M.channel(name), text) end

-- idle_members(name, n) → up to n members of `idle`: name SEP worker.
local function idle_members(name, n)
  return call('ZRANGE', keys.idle, '[' .. name .. SEP, '(' .. name .. AFTER, 'BYLEX', 'LIMIT', 0, n)
end

-- wake_worker(member, worker) → did it get the message? It is not idle from now on, as this member of `idle` said.
local function wake_worker(member, worker)
  call('ZREM', keys.idle, member, AT_REST .. worker)
  return M.send('to:' .. worker, 'work') > 0
end

-- wake(queue, n): wakes up to n idle workers of this queue or of all queues. This is only a hint: a worker that did not
-- get the message asks again by itself. A worker whose channel has no subscriber does not count, so some more are read.
local function wake(queue, n)
  for _, name in ipairs({ queue, '*' }) do
    for _, member in ipairs(idle_members(name, n + 8)) do
      if n <= 0 then return end
      if wake_worker(member, string.sub(member, #name + 2)) then n = n - 1 end
    end
  end
end

-- wake_each_set(queue, n): the same while workers differ in the tasks that they know (lib/skills.lua). Which of them
-- know the tasks of these jobs is not looked up, so up to n workers of each set of skills are woken.
local function wake_each_set(queue, n)
  local woken = {}   -- set of skills → how many workers
  for _, name in ipairs({ queue, '*' }) do
    local members, fields = idle_members(name, MAX_LOOKED_AT), {}
    for i, member in ipairs(members) do fields[i] = 'skills' .. string.sub(member, #name + 1) end
    local skill_sets = #members > 0 and call('HMGET', keys.meta, unpack(fields))
    for i, member in ipairs(members) do
      local skill_set = skill_sets[i] or ''
      if (woken[skill_set] or 0) < n and wake_worker(member, string.sub(member, #name + 2)) then
        woken[skill_set] = (woken[skill_set] or 0) + 1
      end
    end
  end
end

-- wake_workers(arrived): wakes workers for these jobs: queue → how many of its jobs became ready. Mostly `meta` says
-- that no worker is idle. If it says that one may be, and none is, `meta` is corrected.
function M.wake_workers(arrived)
  if meta.asleep ~= '1' then return end
  if call('ZCARD', keys.idle) <= 1 then   -- 1: the sentinel
    call('HSET', keys.meta, 'asleep', '')
    return
  end
  local wake_some = meta.uneven == '1' and wake_each_set or wake
  for queue, n in pairs(arrived) do wake_some(queue, math.min(n, MAX_WOKEN)) end
end

return M
