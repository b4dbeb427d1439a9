-- watch: asks to be told when jobs finish. What has finished already is answered at once.
-- FLAGS: allow-oom
-- KEYS: meta jobs scheduled ready held leases dead finished tombs waiting results attempts
-- ARGV: the client whose mailbox is to be told, then the ids
-- returns: per job: its state or missing, and of a finished one its header, result and failed tries ('' each if none)

local request = require 'request'
local keys = require 'keys'
local jobs = require 'jobs'
local watchers = require 'watchers'
local call = request.call

local M = {}

function M.run()
  local ids, answers = {}, {}
  for at = 2, request.argc do ids[#ids + 1] = request.args[at] end
  local headers = jobs.read(ids)
  for i, id in ipairs(ids) do
    local h = headers[i]
    local answer = { h and h[STATE] or 'missing', '', '', '' }
    if h and (jobs.waits(h) or h[STATE] == 'running') then
      watchers.add(id, request.args[1])
    elseif h then
      answer[2] = call('HGET', keys.jobs, id)
      answer[3] = call('HGET', keys.results, id) or ''
      answer[4] = call('HGET', keys.attempts, id) or ''
    end
    for part = 1, 4 do answers[#answers + 1] = answer[part] end
  end
  return answers
end

return M
