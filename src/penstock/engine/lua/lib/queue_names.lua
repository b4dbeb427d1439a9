-- Names of queues: one is known from its first job on, and forgotten once it has no jobs in any state and nothing is set for it.
-- Enqueue makes it known again: a queue that is not in `heads`, or of which nothing runs, may be one that was forgotten.

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local writes = require 'writes'
local call = request.call

local M = {}

local AT_ONCE_LOOKED_AT = 100   -- names in a page
local COUNTED = { 'scheduled', 'held', 'running', 'done', 'dead', 'cancelled' }   -- of those that are ready the line itself tells

-- bare_names() → the next page of names for which nothing is set; at the end it begins anew.
local function bare_names()
  local page, found = call('HSCAN', keys.queues, call('HGET', keys.meta, 'named') or '0', 'COUNT', AT_ONCE_LOOKED_AT), {}
  for i = 1, #page[2], 2 do
    if page[2][i] ~= '' and page[2][i + 1] == '' then found[#found + 1] = page[2][i] end
  end
  call('HSET', keys.meta, 'named', page[1])
  return found
end

-- is_empty(queue) → is there no job of it?
local function is_empty(queue)
  local fields = {}
  for i, state in ipairs(COUNTED) do fields[i] = queue .. SEP .. state end
  for _, n in ipairs(call('HMGET', keys.counts, unpack(fields))) do
    if n and n ~= '0' then return false end
  end
  return not finish.first_in_line(queue)
end

-- forget(queue). It leaves `heads` first: wherever the script is stopped, a name that is unknown is not there either.
local function forget(queue)
  writes.close_queue(queue)
  writes.delete(keys.queues, queue)
  for _, state in ipairs(COUNTED) do writes.delete(keys.counts, queue .. SEP .. state) end
end

-- forget_unused() → how many names of a page were forgotten.
function M.forget_unused()
  local forgotten = 0
  for _, queue in ipairs(bare_names()) do
    if is_empty(queue) then
      forget(queue)
      forgotten = forgotten + 1
    end
  end
  return forgotten
end

return M
