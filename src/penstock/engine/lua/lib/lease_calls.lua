-- The lease calls of a worker: up to which number it has all answers, and the numbers above that were made.

local request = require 'request'
local keys = require 'keys'
local jobs = require 'jobs'
local call = request.call

local M = {}

local KEPT_CALLS = 32   -- a worker waits before it has made that many beyond one without an answer (worker/fetch.py)

-- add(worker, number, answered) → what to remember once this call is made; and, of a call that must not be made
-- again, stale (its answer has arrived) or made (it has not).
function M.add(worker, number, answered)
  local made, known = {}, nil
  for text in string.gmatch(call('HGET', keys.calls, worker) or '0', '%d+') do made[#made + 1] = tonumber(text) end
  local floor = table.remove(made, 1) or 0
  if number <= floor then return nil, 'stale' end
  for _, one in ipairs(made) do
    if one == number then known = 'made' end
  end
  made[#made + 1] = number
  table.sort(made)
  floor = math.max(floor, answered, #made > KEPT_CALLS and made[1] or 0)
  local kept = { floor }
  for _, one in ipairs(made) do
    if one > floor then kept[#kept + 1] = one end
  end
  return table.concat(kept, ' '), known
end

-- still_held(claim) → the jobs of an earlier call that are not settled yet, in the order in which it gave them.
function M.still_held(claim)
  local ids, fences = {}, {}
  for i, member in ipairs(call('ZRANGE', keys.leases, '[' .. claim .. SEP, '(' .. claim .. AFTER, 'BYLEX')) do
    ids[i] = string.sub(member, #claim + 2)
  end
  for i, h in pairs(jobs.read(ids)) do fences[ids[i]] = h[FENCE] end
  table.sort(ids, function(a, b) return (fences[a] or 0) < (fences[b] or 0) end)
  return ids
end

return M
