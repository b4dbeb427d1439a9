-- revive: dead | cancelled → ready | held, at the tail of its line, with as many retries as a new job.
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: per job: id, new payload or '' to keep its arguments, msgpack of the new [lanes, unique key] or ''
-- returns: per job: ok | missing | taken (another job has its unique key), or its state if it is neither dead nor
--          cancelled
-- event: revive

local request = require 'request'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local rerun = require 'rerun'

local M = {}

-- new_arguments(i) → new payload, lanes and unique key of the i-th job; nothing for what stays the same.
local function new_arguments(i)
  local payload, packed = request.args[3 * i - 1], request.args[3 * i]
  if payload == '' then return nil end
  local lanes_and_unique = packed ~= '' and cmsgpack.unpack(packed) or {}
  return payload, lanes_and_unique[1], lanes_and_unique[2]
end

function M.run()
  local ids, answers = {}, {}
  for at = 1, request.argc, 3 do ids[#ids + 1] = request.args[at] end
  local headers = jobs.read(ids)
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do answers[i] = rerun.rerun('revive', id, headers[i], new_arguments(i)) end
  finish.write_all()
  return answers
end

return M
