-- Schedules: their state, and the jobs that their ticks make. Timers compute when the ticks are. Then they claim a tick
-- by its nominal time (verbs/tick.lua), so each tick is claimed once.
--
-- `state` is the state of a schedule, Standing in model/schedule.py. state.line has two values for each tick that waits
-- for the job of the tick before: job id and nominal time. h is the header of a job.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local create = require 'create'
local jobs = require 'jobs'
local writes = require 'writes'
local call = request.call

local M = {}

local KEPT_TICKS = 10          -- ticks in the history of a schedule
local MAX_WAITING = 100        -- ticks that may wait; then no more are claimed
local LOOK_INTERVAL = 10000    -- ms until timers look at waiting ticks again, if no message says that the job ended
local KEEPERS_READ = 500       -- workers that are checked in one call

-- field(part, schedule) → the field of the key `crons` that has the `spec` or the `state` of this schedule.
function M.field(part, schedule) return part .. SEP .. schedule end

-- state_of(schedule) → its state; nil if there is none, or if it cannot be read.
function M.state_of(schedule)
  local raw = call('HGET', keys.crons, M.field('state', schedule))
  local is_read, state = pcall(cmsgpack.unpack, raw or '')
  if not is_read or type(state) ~= 'table' then return nil end
  if type(state.line) ~= 'table' or type(state.history) ~= 'table' then return nil end
  if type(state.next) ~= 'number' or type(state.due) ~= 'number' or type(state.last) ~= 'string' then return nil end
  return state
end

-- event_subject(state) → what events.add() takes as the header in an event about a schedule.
function M.event_subject(state)
  return { [STATE] = '', [TASK] = state.task, [QUEUE] = state.queue, [FAILURES] = 0, [CRASHES] = 0 }
end

-- add_history(state, nominal, job_id, result): remembers what came of the tick with this nominal time.
function M.add_history(state, nominal, job_id, result)
  if #state.history >= KEPT_TICKS then table.remove(state.history, 1) end
  state.history[#state.history + 1] = { nominal, request.now, job_id, result }
end

-- unfinished(job_id) → does this job exist, and has it not finished yet?
function M.unfinished(job_id)
  local h = job_id ~= '' and jobs.read({ job_id })[1]
  return h and (jobs.waits(h) or h[STATE] == 'running')
end

-- create_job(schedule, job_id, form, payload) → made (also if it existed) | unique (another job has its unique key).
local function create_job(schedule, job_id, form, payload)
  if jobs.read({ job_id })[1] or jobs.unreadable[job_id] then return 'made' end
  local h = record.new_header(form)
  if h[UNIQUE] ~= '' and create.unique_holder(h[UNIQUE]) then return 'unique' end
  create.create('enqueue', job_id, h, payload, 'cron ' .. schedule)
  return 'made'
end

-- watch(job_id): timers get a message when this job ends. They listen under the name `crons`.
local function watch(job_id)
  local clients = call('HGET', keys.waiting, job_id) or ''
  if not string.find(SEP .. clients, SEP .. 'crons' .. SEP, 1, true) then
    writes.set(keys.waiting, job_id, clients .. 'crons' .. SEP)
  end
end

-- end_tick(state, job_id, nominal, result): the tick with this nominal time is over. Its result is made (this job),
-- skipped, or unique.
local function end_tick(state, job_id, nominal, result)
  if result == 'made' then
    state.last, state.made = job_id, state.made + 1
  else
    state.skipped, job_id = state.skipped + 1, ''
  end
  M.add_history(state, nominal, job_id, result)
end

-- run_waiting(schedule, state, form, payload) → how many jobs were made, for ticks that need not wait any longer. All
-- jobs of a schedule have the same form (record.new_header) and payload.
function M.run_waiting(schedule, state, form, payload)
  local still_waiting, n_made = {}, 0
  for i = 1, #state.line, 2 do
    local job_id, nominal = state.line[i], state.line[i + 1]
    local is_busy = state.overlap ~= 'allow' and M.unfinished(state.last)
    if is_busy and state.overlap == 'queue' then
      still_waiting[#still_waiting + 1] = job_id
      still_waiting[#still_waiting + 1] = nominal
    else
      local result = is_busy and 'skipped' or create_job(schedule, job_id, form, payload)
      if result == 'made' then n_made = n_made + 1 end
      end_tick(state, job_id, nominal, result)
    end
  end
  state.line = still_waiting
  if #still_waiting > 0 then watch(state.last) end
  return n_made
end

-- is_full(state) → do as many ticks wait as may wait?
function M.is_full(state) return #state.line >= MAX_WAITING * 2 end

-- next_look(state) → when a timer must look at this schedule again.
local function next_look(state)
  local soon = request.now + LOOK_INTERVAL
  if M.is_full(state) then return soon end
  return #state.line > 0 and math.min(state.due, soon) or state.due
end

-- save(schedule, state): stores the state, and when a timer must look at the schedule.
function M.save(schedule, state)
  state.look = next_look(state)
  writes.set(keys.crons, M.field('state', schedule), cmsgpack.pack(state))
  if state.status == 'active' then
    writes.add(keys.ticks, state.look, schedule)
    writes.wake_timer_at(keys.ticks, state.look)
  else
    writes.remove(keys.ticks, schedule)
  end
end

-- has_keeper(schedule) → does a live worker have this schedule in its code? Drops keepers that are gone.
function M.has_keeper(schedule)
  local first, last = '[' .. schedule .. SEP, '(' .. schedule .. AFTER
  local keepers = call('ZRANGE', keys.keepers, first, last, 'BYLEX', 'LIMIT', 0, KEEPERS_READ)
  local has_live_keeper = false
  for _, keeper in ipairs(keepers) do
    local worker = string.sub(keeper, #schedule + 2)
    if call('ZSCORE', keys.workers, worker) then has_live_keeper = true else writes.remove(keys.keepers, keeper) end
  end
  return has_live_keeper or #keepers == KEEPERS_READ   -- one of the keepers that were not read may live
end

return M
