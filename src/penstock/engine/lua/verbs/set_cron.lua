-- set_cron: makes a schedule or changes it. An equal schedule stays as it is, so any number of workers may send it at
--      once. Code does not change a schedule that was set at run time.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- ARGV: schedule, source (code | set), the worker whose code it is or '', version, pace, overlap, task, queue, nominal
--       time and due time of its next tick, spec (opaque)
-- returns: made | changed | same | kept (it was set at run time)
-- event: set_cron

local request = require 'request'
local keys = require 'keys'
local events = require 'events'
local finish = require 'finish'
local schedules = require 'schedules'
local writes = require 'writes'
local call = request.call

local M = {}

-- compare(state, source, version) → made | changed | same: what this call does to the schedule with this state.
local function compare(state, source, version)
  if not state then return 'made' end
  return state.version == version and state.source == source and 'same' or 'changed'
end

local function new_state()
  return { status = 'active', last = '', made = 0, skipped = 0, missed = 0, line = {}, history = {} }
end

-- add_keeper(schedule, worker): this worker, if it lives, has the schedule in its code.
local function add_keeper(schedule, worker)
  if worker == '' or not call('ZSCORE', keys.workers, worker) then return end
  schedules.has_keeper(schedule)   -- it drops keepers that are gone
  writes.add(keys.keepers, 0, schedule .. SEP .. worker)
end

function M.run()
  local schedule, source, worker, version, pace, overlap, task, queue, nominal, due, spec = unpack(request.args, 1, 11)
  local state = schedules.state_of(schedule)
  if state and source == 'code' and state.source == 'set' then return 'kept' end
  local answer = compare(state, source, version)
  state = state or new_state()
  if state.pace ~= pace then state.pace, state.next, state.due = pace, tonumber(nominal), tonumber(due) end
  add_keeper(schedule, worker)
  if answer ~= 'same' or state.status == 'orphaned' then
    state.version, state.source, state.changed = version, source, request.now
    state.overlap, state.task, state.queue = overlap, task, queue
    if state.status == 'orphaned' then state.status = 'active' end
    writes.set(keys.crons, schedules.field('spec', schedule), spec)
    schedules.save(schedule, state)
    events.add('set_cron', schedule, schedules.event_subject(state), answer)
  end
  finish.write_all()
  return answer
end

return M
