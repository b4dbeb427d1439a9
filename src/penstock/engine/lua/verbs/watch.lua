-- watch: a client asks for a message when jobs end. The jobs that have ended are answered at once.
-- FLAGS: allow-oom
-- KEYS: meta jobs scheduled ready held leases dead finished tombs waiting results attempts
-- ARGV: the client that gets the message, then the ids
-- returns: per job: its state or missing, and if it has ended its record, result and failed attempts; '' for what is
--          not there

-- h is the header of a job.

local request = require 'request'
local keys = require 'keys'
local jobs = require 'jobs'
local watchers = require 'watchers'
local call = request.call

local M = {}

-- watch(client, id, h) → the four values of the answer for this job. If it has not ended, the client gets a message.
local function watch(client, id, h)
  if not h then return 'missing', '', '', '' end
  if jobs.waits(h) or h[STATE] == 'running' then
    watchers.add(id, client)
    return h[STATE], '', '', ''
  end
  local result, attempts = call('HGET', keys.results, id) or '', call('HGET', keys.attempts, id) or ''
  return h[STATE], call('HGET', keys.jobs, id), result, attempts
end

function M.run()
  local client, ids, answer = request.args[1], {}, {}
  for at = 2, request.argc do ids[#ids + 1] = request.args[at] end
  local headers = jobs.read(ids)
  for i, id in ipairs(ids) do
    local n = #answer
    answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = watch(client, id, headers[i])
  end
  return answer
end

return M
