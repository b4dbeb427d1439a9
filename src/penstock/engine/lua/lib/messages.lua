-- Mail: who is concerned is told, by sharded pub/sub.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local call = request.call

local M = {}

function M.channel(to) return string.sub(keys.meta, 1, -5) .. to end

function M.send(to, text) return call('SPUBLISH', M.channel(to), text) end

-- wake(queue, n): tells up to n sleeping workers of this queue, or of all, that there is work. Only hints: a worker that
-- did not hear it asks again by itself; one that nobody listens for any more is passed over.
local function wake(queue, n)
  for _, name in ipairs({ queue, '*' }) do
    local asleep = call('ZRANGE', keys.idle, '[' .. name .. SEP, '(' .. name .. AFTER, 'BYLEX', 'LIMIT', 0, n + 8)
    for _, member in ipairs(asleep) do
      if n <= 0 then return end
      local worker = string.sub(member, #name + 2)
      call('ZREM', keys.idle, member, AT_REST .. worker)
      if M.send('to:' .. worker, 'work') > 0 then n = n - 1 end
    end
  end
end

-- wake_each(queue, n): the same while workers differ in what they know (lib/skills.lua). Whose job it is nobody knows here, so up to n
-- are told of each set of skills.
local function wake_each(queue, n)
  local told = {}
  for _, name in ipairs({ queue, '*' }) do
    local asleep, fields = call('ZRANGE', keys.idle, '[' .. name .. SEP, '(' .. name .. AFTER, 'BYLEX', 'LIMIT', 0, 500), {}
    for i, member in ipairs(asleep) do fields[i] = 'skills' .. string.sub(member, #name + 1) end
    local sets = #asleep > 0 and call('HMGET', keys.meta, unpack(fields))
    for i, member in ipairs(asleep) do
      local worker, set = string.sub(member, #name + 2), sets[i] or ''
      if (told[set] or 0) < n then
        call('ZREM', keys.idle, member, AT_REST .. worker)
        if M.send('to:' .. worker, 'work') > 0 then told[set] = (told[set] or 0) + 1 end
      end
    end
  end
end

-- wake_workers(arrived): wakes workers for queue → how many became ready there. Mostly `meta` tells that none is asleep;
-- once that is so, it is noted there.
function M.wake_workers(arrived)
  if meta.asleep ~= '1' then return end
  if call('ZCARD', keys.idle) > 1 then
    local tell = meta.uneven == '1' and wake_each or wake
    for queue, n in pairs(arrived) do tell(queue, math.min(n, 8)) end
  else
    call('HSET', keys.meta, 'asleep', '')
  end
end

return M
