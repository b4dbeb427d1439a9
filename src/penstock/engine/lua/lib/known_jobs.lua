-- While workers differ in what they know, lease passes over the jobs that other live workers know and this one does not. They stay
-- where they are.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local unknown_tasks = require 'unknown_tasks'
local call = request.call

local M = {}

local left_to_pass, kind_before, is_before

local MOST_PASSED, FEWEST_PASSED = 2000, 20   -- in one call; of one line half of what is left, and at least so many

function M.reset()
  left_to_pass = MOST_PASSED
  M.passed_over = {}   -- queue → were jobs in its line passed over?
  M.unknown_here = unknown_tasks.of_worker(request.args[1])
  kind_before, is_before = nil, nil
end

-- is_for_others(raw) → is this stored of a job that the worker lacks? Jobs with one label are looked at once.
local function is_for_others(raw)
  local kind = record.form_in(raw)
  if kind ~= kind_before then
    is_before = unknown_tasks.includes(M.unknown_here, kind[QUEUE], kind[TASK])
    kind_before = kind
  end
  return is_before
end

-- own(ids) → the positions of those that are for this worker. What cannot be read is: lease sees to it.
local function own(ids)
  local positions = {}
  if #ids == 0 then return positions end
  for i, raw in ipairs(call('HMGET', keys.jobs, unpack(ids))) do
    local fine, is_others = pcall(is_for_others, raw or '')
    if not (fine and is_others) then positions[#positions + 1] = i end
  end
  return positions
end

-- known_ids(ids) → those that are for this worker.
function M.known_ids(ids)
  local found = {}
  for n, i in ipairs(own(ids)) do found[n] = ids[i] end
  return found
end

-- known_members(queue, from, n) → the first n members of this line, from here on, that are for this worker; fewer if too many others
-- are in between.
function M.known_members(queue, from, n)
  local found, page, left = {}, n, math.max(math.floor(left_to_pass / 2), FEWEST_PASSED)
  while #found < n and left > 0 do
    local members, ids = call('ZRANGE', keys.ready, from, '(' .. queue .. AFTER, 'BYLEX', 'LIMIT', 0, page), {}
    for i, member in ipairs(members) do ids[i] = string.sub(member, #queue + 17) end   -- behind queue and rank
    local positions = own(ids)
    if #positions < #members then M.passed_over[queue] = true end
    for _, i in ipairs(positions) do
      if #found < n then found[#found + 1] = members[i] end
    end
    left, left_to_pass = left - #members + #positions, left_to_pass - #members + #positions
    if #members < page then break end
    from, page = '(' .. members[page], math.min(page * 2, 200)
  end
  return found
end

return M
