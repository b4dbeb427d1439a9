-- expire: scheduled | held | ready → cancelled, for jobs that did not start before they expire.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: how many at most
-- returns: how many expired, the next expiry or -1, now
-- event: expire
-- In the code, `h` is the header of a job.

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

function M.run()
  local members = call('ZRANGE', keys.timers, '-inf', request.now, 'BYSCORE', 'LIMIT', 0, request.args[1])
  local ids, n_expired = {}, 0
  for i, member in ipairs(members) do ids[i] = jobs.last_part(member) end
  local headers = jobs.read(ids)
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do
    local h = headers[i]
    if h and jobs.waits(h) and h[EXPIRES] > 0 then
      h[REASON] = 'expired'
      transition.move('expire', id, h, 'cancelled', 'expired')
      n_expired = n_expired + 1
    else
      writes.remove(keys.timers, members[i])
    end
  end
  finish.write_all()
  return { n_expired, jobs.first_score(keys.timers) or -1, request.now }
end

return M
