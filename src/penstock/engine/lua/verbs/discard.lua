-- discard: done | dead | cancelled → tombstone, before its time. What was stored of it is gone, its id is still known.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues results attempts logs
-- ARGV: the ids
-- returns: per job: ok | missing | needed (its batch has not ended), or the state that it is in, for it has not finished
-- event: discard

local request = require 'request'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local tombstones = require 'tombstones'

local M = {}

function M.run()
  local ids, answers = {}, {}
  for at = 1, request.argc do ids[#ids + 1] = request.args[at] end
  local headers = jobs.read(ids)
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do
    local h = headers[i]
    if not h then
      answers[i] = 'missing'
    elseif jobs.waits(h) or h[STATE] == 'running' then
      answers[i] = h[STATE]
    elseif h[COMPACT] == 0 and tombstones.is_needed(h) then
      answers[i] = 'needed'
    else
      answers[i] = 'ok'
      if h[COMPACT] == 0 then tombstones.bury('discard', id, h) end
    end
  end
  finish.write_all()
  return answers
end

return M
