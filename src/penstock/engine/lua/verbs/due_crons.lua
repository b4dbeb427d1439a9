-- due_crons: says which schedules are due, and which of some others have ticks that wait.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- ARGV: how many schedules at most, how many bytes of specs at most, then ids of the others
-- returns: when to look next or -1, now, then per schedule: id, spec, state

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local jobs = require 'jobs'
local schedules = require 'schedules'
local writes = require 'writes'
local call = request.call

local M = {}

-- add_waiting(ids): adds to this list the schedules that the caller asks about, if they have ticks that wait.
local function add_waiting(ids)
  for i = 3, request.argc do
    local state = schedules.state_of(request.args[i])
    if state and #state.line > 0 then ids[#ids + 1] = request.args[i] end
  end
end

-- add_rows(answer, ids, max_size): adds id, spec and state of these schedules to the answer: of the first one in any
-- case, of the others while there is room. A schedule that cannot be read is taken out of `ticks`.
local function add_rows(answer, ids, max_size)
  local size, n = 0, #answer
  for _, id in ipairs(ids) do
    local fields = call('HMGET', keys.crons, schedules.field('spec', id), schedules.field('state', id))
    local spec, state = fields[1], fields[2]
    if spec and schedules.state_of(id) then
      size = size + #spec
      if n > 2 and size > max_size then break end
      answer[n + 1], answer[n + 2], answer[n + 3] = id, spec, state
      n = n + 3
    else
      writes.remove(keys.ticks, id)
    end
  end
end

function M.run()
  local limit, max_size = request.args[1], tonumber(request.args[2])
  local ids = call('ZRANGE', keys.ticks, '-inf', request.now, 'BYSCORE', 'LIMIT', 0, limit)
  local answer = { -1, request.now }
  add_waiting(ids)
  add_rows(answer, ids, max_size)
  finish.write_all()
  answer[1] = jobs.first_score(keys.ticks) or -1
  return answer
end

return M
