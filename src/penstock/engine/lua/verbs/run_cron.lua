-- run_cron: a job of a schedule here and now, whatever its times; also while it is paused. It obeys `overlap`.
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- ARGV: schedule, version, job id, packed header, payload
-- returns: made | queued | busy (the one before it is unfinished) | unique | changed (look again) | missing
-- event: that of the job it makes

local request = require 'request'
local finish = require 'finish'
local jobs = require 'jobs'
local schedules = require 'schedules'

local M = {}

function M.run()
  local id, job = request.args[1], request.args[3]
  local s = schedules.state_of(id)
  if not s then return 'missing' end
  if s.version ~= request.args[2] then return 'changed' end
  if jobs.read({ job })[1] then return 'made' end
  for i = 1, #s.line, 2 do
    if s.line[i] == job then return 'queued' end
  end
  local waits_for = s.overlap ~= 'allow' and (#s.line > 0 or schedules.unfinished(s.last))
  if waits_for and (s.overlap == 'skip' or schedules.is_full(s)) then return 'busy' end
  s.line[#s.line + 1], s.line[#s.line + 2] = job, request.now
  local made = schedules.run_waiting(id, s, request.args[4], request.args[5])
  schedules.save(id, s)
  finish.write_created()
  return made > 0 and jobs.decoded[job] and 'made' or (waits_for and 'queued' or 'unique')
end

return M
