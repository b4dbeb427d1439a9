-- tick: a schedule that is due makes its jobs. The caller claims a tick by its nominal time, which must be that of the
--      next tick: however many timers try, one claims it. The job's id is made of schedule and nominal time.
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- ARGV: schedule, version, nominal time of the tick that is claimed (-1: none, only ticks that wait are looked at),
--       nominal time and due time of the tick after it, nominal time of the first missed tick or 0, packed header and
--       payload of the jobs, then per job: id, nominal time
-- returns: ok | stale (it was claimed before) | full (too many ticks wait) | early | changed (read it again) | paused |
--          orphaned (no live worker has it in its code) | alone (there is no live worker) | missing; how many jobs were
--          made
-- event: those of the jobs that it makes

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local schedules = require 'schedules'
local call = request.call

local M = {}

-- orphan(schedule, state): no live worker has it in its code, so it makes no jobs until one has.
local function orphan(schedule, state)
  state.status = 'orphaned'
  schedules.save(schedule, state)
  finish.write_all()
end

-- refusal(schedule, state, version) → why the schedule makes no jobs, or nothing.
local function refusal(schedule, state, version)
  if not state then return 'missing' end
  if state.status ~= 'active' then return state.status end
  if state.version ~= version then return 'changed' end
  if state.source ~= 'code' or schedules.has_keeper(schedule) then return nil end
  if call('ZCARD', keys.workers) <= 1 then return 'alone' end   -- there is only the sentinel
  orphan(schedule, state)
  return 'orphaned'
end

-- claim(state) → ok | stale | early | full. If it is ok, the jobs of this tick, and of earlier ticks that are made up
-- for, are in the state's line.
local function claim(state)
  local nominal, next_nominal, next_due, missed = unpack(request.args, 3, 6)
  if tonumber(nominal) < 0 then return 'ok' end
  if state.next ~= tonumber(nominal) then return 'stale' end
  if state.due > request.now then return 'early' end
  if schedules.is_full(state) then return 'full' end
  for at = 9, request.argc, 2 do
    state.line[#state.line + 1] = request.args[at]
    state.line[#state.line + 1] = tonumber(request.args[at + 1])
  end
  state.next, state.due = tonumber(next_nominal), tonumber(next_due)
  if tonumber(missed) > 0 then
    state.missed = state.missed + 1
    schedules.add_history(state, tonumber(missed), '', 'missed')
  end
  return 'ok'
end

function M.run()
  local schedule, version, form, payload = request.args[1], request.args[2], request.args[7], request.args[8]
  local state = schedules.state_of(schedule)
  local refused = refusal(schedule, state, version)
  if refused then return { refused, 0 } end
  local claimed = claim(state)
  if claimed == 'early' or (claimed == 'stale' and #state.line == 0) then return { claimed, 0 } end
  local n_made = schedules.run_waiting(schedule, state, form, payload)
  schedules.save(schedule, state)
  finish.write_created()
  return { claimed, n_made }
end

return M
