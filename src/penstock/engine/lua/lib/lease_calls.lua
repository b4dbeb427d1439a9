-- The lease calls of a worker: the number up to which it has all answers, and the higher numbers that were used.

local request = require 'request'
local keys = require 'keys'
local jobs = require 'jobs'
local call = request.call

local M = {}

local KEPT_CALLS = 32   -- a worker makes fewer beyond one that has no answer (MAX_CALLS_AHEAD in worker/session.py)

-- read_calls(worker) → the number up to which it has all answers, and the list of higher numbers that were used.
local function read_calls(worker)
  local text, numbers = call('HGET', keys.calls, worker) or '0', {}
  for digits in string.gmatch(text, '%d+') do numbers[#numbers + 1] = tonumber(digits) end
  local floor = table.remove(numbers, 1) or 0
  return floor, numbers
end

-- add(worker, number, answered) → what to store once this call is made. The second value is given for a call that
-- must not be made again: stale if its answer has arrived, made if it may not have.
function M.add(worker, number, answered)
  local floor, made = read_calls(worker)
  if number <= floor then return nil, 'stale' end
  local known
  for _, used in ipairs(made) do
    if used == number then known = 'made' end
  end
  made[#made + 1] = number
  table.sort(made)
  floor = math.max(floor, answered, #made > KEPT_CALLS and made[1] or 0)
  local stored = { floor }
  for _, used in ipairs(made) do
    if used > floor then stored[#stored + 1] = used end
  end
  return table.concat(stored, ' '), known
end

-- still_held(claim) → the jobs of an earlier call that are not settled yet, in the order in which it gave them.
function M.still_held(claim)
  local ids, fences = {}, {}
  local members = call('ZRANGE', keys.leases, '[' .. claim .. SEP, '(' .. claim .. AFTER, 'BYLEX')
  for i, member in ipairs(members) do ids[i] = string.sub(member, #claim + 2) end
  for i, h in pairs(jobs.read(ids)) do fences[ids[i]] = h[FENCE] end
  table.sort(ids, function(id, other) return (fences[id] or 0) < (fences[other] or 0) end)
  return ids
end

return M
