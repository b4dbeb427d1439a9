-- set_cron: makes a schedule or changes it. What is the same stays as it is, so any number of nodes may say it at once;
-- what was set at run time wins over the code.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- ARGV: schedule, source (code | set), the worker whose code it is or '', version, pace, overlap, task, queue, nominal and
--       due time of its next tick, and the schedule itself, opaque
-- returns: made | changed | same | kept (it was set at run time)
-- event: set_cron

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local schedules = require 'schedules'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

function M.run()
  local id, source, worker, version, pace = request.args[1], request.args[2], request.args[3], request.args[4], request.args[5]
  local s, word = schedules.state_of(id), 'same'
  if s and source == 'code' and s.source == 'set' then return 'kept' end
  if not s then
    s = { status = 'active', last = '', made = 0, skipped = 0, missed = 0, line = {}, history = {} }
    word = 'made'
  elseif s.version ~= version or s.source ~= source then
    word = 'changed'
  end
  if s.pace ~= pace then s.pace, s.next, s.due = pace, tonumber(request.args[9]), tonumber(request.args[10]) end
  if worker ~= '' and call('ZSCORE', keys.workers, worker) then
    schedules.has_keeper(id)
    writes.add(keys.keepers, 0, id .. SEP .. worker)
  end
  if word ~= 'same' or s.status == 'orphaned' then
    s.version, s.source, s.changed = version, source, request.now
    s.overlap, s.task, s.queue = request.args[6], request.args[7], request.args[8]
    if s.status == 'orphaned' then s.status = 'active' end
    writes.set(keys.crons, schedules.field('spec', id), request.args[11])
    schedules.save(id, s)
    transition.add_event('set_cron', id, schedules.event_subject(s), word)
  end
  finish.write_all()
  return word
end

return M
