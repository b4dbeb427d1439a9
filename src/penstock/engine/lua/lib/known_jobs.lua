-- While workers differ in the tasks that they know, lease passes over the jobs that this worker does not know and
-- another live worker does. These jobs stay in their place in line.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local unknown_tasks = require 'unknown_tasks'
local call = request.call

local M = {}

local MAX_PASSED = 2000   -- jobs that one call passes over, of all lines together
local MIN_PASSED = 20     -- jobs of one line that may be passed over, however many were before
local MAX_PAGE = 200      -- members that are read at once

local left_to_pass, previous_kind, previous_is_unknown

function M.reset()
  left_to_pass = MAX_PASSED   -- how many more jobs this call passes over
  previous_kind = nil         -- kind of the job that was looked at last
  previous_is_unknown = nil   -- is the task of this kind unknown to the worker?
  M.passed_over = {}          -- queue → true, if jobs in its line were passed over
  -- The tasks that the worker does not know; nothing if there are none.
  M.unknown_here = unknown_tasks.of_worker(request.args[1])
end

-- is_unknown(raw) → is the task in this record unknown to the worker? Kinds are looked up once for a run of such
-- jobs.
local function is_unknown(raw)
  local kind = record.form_in(raw)
  if kind ~= previous_kind then
    previous_is_unknown = unknown_tasks.includes(M.unknown_here, kind[QUEUE], kind[TASK])
    previous_kind = kind
  end
  return previous_is_unknown
end

-- known_positions(ids) → the positions of the jobs that the worker may take. Among them are those whose record
-- cannot be read: lease deals with them.
local function known_positions(ids)
  local positions = {}
  if #ids == 0 then return positions end
  for i, raw in ipairs(call('HMGET', keys.jobs, unpack(ids))) do
    local is_readable, is_for_others = pcall(is_unknown, raw or '')
    if not (is_readable and is_for_others) then positions[#positions + 1] = i end
  end
  return positions
end

-- known_ids(ids) → the ids of the jobs that the worker may take.
function M.known_ids(ids)
  local known = {}
  for n, i in ipairs(known_positions(ids)) do known[n] = ids[i] end
  return known
end

-- known_members(queue, from, n) → the first n members of this queue's line, from there on, that the worker may take.
-- They are fewer if too many other jobs stand between them.
function M.known_members(queue, from, n)
  local known, page_size = {}, n
  local left_in_line = math.max(math.floor(left_to_pass / 2), MIN_PASSED)
  while #known < n and left_in_line > 0 do
    local members, ids = call('ZRANGE', keys.ready, from, '(' .. queue .. AFTER, 'BYLEX', 'LIMIT', 0, page_size), {}
    for i, member in ipairs(members) do ids[i] = string.sub(member, #queue + 17) end   -- after queue and rank
    local positions = known_positions(ids)
    for _, i in ipairs(positions) do
      if #known < n then known[#known + 1] = members[i] end
    end
    local n_passed = #members - #positions
    if n_passed > 0 then M.passed_over[queue] = true end
    left_in_line = left_in_line - n_passed
    left_to_pass = left_to_pass - n_passed
    if #members < page_size then break end
    from, page_size = '(' .. members[page_size], math.min(page_size * 2, MAX_PAGE)
  end
  return known
end

return M
