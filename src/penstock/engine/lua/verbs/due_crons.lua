-- due_crons: which schedules are due, and which of some others have ticks that wait.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- ARGV: how many at most, how many bytes of them at most, then the others
-- returns: when to look next or -1, now, then per schedule: id, the schedule, where it stands

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local jobs = require 'jobs'
local schedules = require 'schedules'
local writes = require 'writes'
local call = request.call

local M = {}

function M.run()
  local answer = { -1, request.now }
  local ids, size = call('ZRANGE', keys.ticks, '-inf', request.now, 'BYSCORE', 'LIMIT', 0, request.args[1]), 0
  for at = 3, request.argc do
    local s = schedules.state_of(request.args[at])
    if s and #s.line > 0 then ids[#ids + 1] = request.args[at] end
  end
  for _, id in ipairs(ids) do
    local found = call('HMGET', keys.crons, schedules.field('spec', id), schedules.field('state', id))
    if found[1] and schedules.state_of(id) then
      size = size + #found[1]
      local n = #answer
      if n > 2 and size > tonumber(request.args[2]) then break end
      answer[n + 1], answer[n + 2], answer[n + 3] = id, found[1], found[2]
    else
      writes.remove(keys.ticks, id)
    end
  end
  finish.write_all()
  answer[1] = jobs.first_score(keys.ticks) or -1
  return answer
end

return M
