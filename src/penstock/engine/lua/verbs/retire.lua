-- retire: running → ready | held at the head of the line, for all that a worker holds whose life ends. No attempt used.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts nodes skills
--       workers calls retired lives
-- ARGV: worker, how many jobs at most
-- returns: how many went back, 1 if there are more
-- event: release

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local settle = require 'settle'
local worker_lives = require 'worker_lives'
local writes = require 'writes'

local M = {}

function M.run()
  local worker = request.args[1]
  local members = jobs.held_by(worker, tonumber(request.args[2]))
  local ids = {}
  for i, member in ipairs(members) do ids[i] = jobs.last_part(member) end
  local headers = jobs.read(ids)
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do
    local h = headers[i]
    if not h or h[STATE] ~= 'running' or h[CLAIM] .. SEP .. id ~= members[i] then
      if h or not settle.bury_if_unreadable(id, string.sub(members[i], 1, -2 - #id)) then writes.remove(keys.leases, members[i]) end
    elseif h[CANCELLING] == 1 then
      settle.end_cancelled('release', id, h)
    else
      h[RELEASES] = h[RELEASES] + 1
      lane_entry.line_up('release', id, h)
    end
  end
  finish.write_all()
  if #jobs.held_by(worker, 1) > 0 then return { #ids, 1 } end
  worker_lives.forget(worker)
  return { #ids, 0 }
end

return M
