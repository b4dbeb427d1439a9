-- Names of queues, in the key `queues`. A name is known from the first job of its queue on. It is forgotten when the
-- queue has no settings and no jobs in any state. Enqueue stores the name again when it may have been forgotten: when
-- the queue is not in `heads`, or when none of its jobs runs.

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local writes = require 'writes'
local call = request.call

local M = {}

local PAGE = 100   -- names that one call looks at
local COUNTED = { 'scheduled', 'held', 'running', 'done', 'dead', 'cancelled' }   -- states in `counts`: all but ready

-- unset_names() → the names of queues without settings in the next page. After the last page comes the first one.
local function unset_names()
  local cursor = call('HGET', keys.meta, 'named') or '0'
  local page = call('HSCAN', keys.queues, cursor, 'COUNT', PAGE)
  local rows, names = page[2], {}
  for i = 1, #rows, 2 do
    local name, settings = rows[i], rows[i + 1]
    if name ~= '' and settings == '' then names[#names + 1] = name end
  end
  call('HSET', keys.meta, 'named', page[1])
  return names
end

-- is_empty(queue) → has it no job in any state?
local function is_empty(queue)
  local fields = {}
  for i, state in ipairs(COUNTED) do fields[i] = queue .. SEP .. state end
  for _, count in ipairs(call('HMGET', keys.counts, unpack(fields))) do
    if count and count ~= '0' then return false end
  end
  return not finish.first_in_line(queue)
end

-- forget(queue): it leaves `heads` first. So wherever the script is stopped, no unknown queue is in `heads`.
local function forget(queue)
  writes.close_queue(queue)
  writes.delete(keys.queues, queue)
  for _, state in ipairs(COUNTED) do writes.delete(keys.counts, queue .. SEP .. state) end
end

-- forget_unused() → how many names of the next page were forgotten.
function M.forget_unused()
  local n_forgotten = 0
  for _, queue in ipairs(unset_names()) do
    if is_empty(queue) then
      forget(queue)
      n_forgotten = n_forgotten + 1
    end
  end
  return n_forgotten
end

return M
