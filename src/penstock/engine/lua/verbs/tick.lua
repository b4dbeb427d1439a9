-- tick: a schedule that is due makes its jobs. The tick is claimed by naming the next one as it stands, so that however many
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues crons ticks keepers
--       workers
-- nodes try, one does it; and its job's id is made of schedule and nominal time.
-- ARGV: schedule, version, nominal time of the tick that is claimed or -1 for none (only see to those that wait), nominal and
--       due time of the one after, the first one that was missed or 0, packed header, payload, then per job: id, nominal time
-- returns: ok | stale (somebody else did it) | full (too many wait) | early | changed | paused | orphaned (no live worker's code has it) |
--          alone (there is no live worker) | missing;
--          how many jobs were made
-- event: those of the jobs it makes

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local schedules = require 'schedules'
local call = request.call

local M = {}

function M.run()
  local id, expected, missed = request.args[1], tonumber(request.args[3]), tonumber(request.args[6])
  local s, word = schedules.state_of(id), 'ok'
  if not s then return { 'missing', 0 } end
  if s.status ~= 'active' then return { s.status, 0 } end
  if s.version ~= request.args[2] then return { 'changed', 0 } end
  if s.source == 'code' and not schedules.has_keeper(id) then
    if call('ZCARD', keys.workers) <= 1 then return { 'alone', 0 } end
    s.status = 'orphaned'
    schedules.save(id, s)
    finish.write_all()
    return { 'orphaned', 0 }
  end
  if expected >= 0 and s.next ~= expected then
    word = 'stale'
  elseif expected >= 0 and s.due > request.now then
    return { 'early', 0 }
  elseif expected >= 0 and schedules.is_full(s) then
    word = 'full'
  elseif expected >= 0 then
    for at = 9, request.argc, 2 do
      s.line[#s.line + 1], s.line[#s.line + 2] = request.args[at], tonumber(request.args[at + 1])
    end
    s.next, s.due = tonumber(request.args[4]), tonumber(request.args[5])
    if missed > 0 then
      s.missed = s.missed + 1
      schedules.add_history(s, missed, '', 'missed')
    end
  end
  if word == 'stale' and #s.line == 0 then return { word, 0 } end
  local made = schedules.run_waiting(id, s, request.args[7], request.args[8])
  schedules.save(id, s)
  finish.write_created()
  return { word, made }
end

return M
