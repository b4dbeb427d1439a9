-- run_cron: a schedule makes a job now, whatever its times, and also while it is paused. It obeys `overlap`.
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- ARGV: schedule, version, id of the job, its packed header, its payload
-- returns: made | queued | busy (its last job is unfinished) | unique (another job has the unique key) | changed (read
--          it again) | missing
-- event: that of the job that it makes

local request = require 'request'
local finish = require 'finish'
local jobs = require 'jobs'
local schedules = require 'schedules'

local M = {}

-- is_queued(state, job_id) → does this job wait in the schedule's line already? Then this call was sent again.
local function is_queued(state, job_id)
  for i = 1, #state.line, 2 do
    if state.line[i] == job_id then return true end
  end
  return false
end

-- must_wait(state) → does `overlap` keep a job from starting now?
local function must_wait(state)
  return state.overlap ~= 'allow' and (#state.line > 0 or schedules.unfinished(state.last))
end

function M.run()
  local schedule, version, job_id, form, payload = unpack(request.args, 1, 5)
  local state = schedules.state_of(schedule)
  if not state then return 'missing' end
  if state.version ~= version then return 'changed' end
  if jobs.read({ job_id })[1] then return 'made' end
  if is_queued(state, job_id) then return 'queued' end
  local waits = must_wait(state)
  if waits and (state.overlap == 'skip' or schedules.is_full(state)) then return 'busy' end
  state.line[#state.line + 1] = job_id
  state.line[#state.line + 1] = request.now   -- its nominal time
  local n_made = schedules.run_waiting(schedule, state, form, payload)
  schedules.save(schedule, state)
  finish.write_created()
  if n_made > 0 and jobs.decoded[job_id] then return 'made' end   -- jobs that waited may have been made, too
  return waits and 'queued' or 'unique'
end

return M
