-- discard: done | dead | cancelled → tombstone, before its time. Its id stays known, all else is gone.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues results attempts logs
-- ARGV: the ids
-- returns: per job: ok | missing | needed (its batch has not ended), or its state if it has not finished
-- event: discard

local request = require 'request'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local tombstones = require 'tombstones'

local M = {}

-- discard(id, header) → the answer for one job.
local function discard(id, header)
  if not header then return 'missing' end
  if jobs.waits(header) or header[STATE] == 'running' then return header[STATE] end
  if header[COMPACT] == 1 then return 'ok' end   -- it is a tombstone
  if tombstones.is_needed(header) then return 'needed' end
  tombstones.bury('discard', id, header)
  return 'ok'
end

function M.run()
  local ids = { unpack(request.args, 1, request.argc) }
  local headers, answers = jobs.read(ids), {}
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do answers[i] = discard(id, headers[i]) end
  finish.write_all()
  return answers
end

return M
