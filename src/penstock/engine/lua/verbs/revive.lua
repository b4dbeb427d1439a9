-- revive: dead | cancelled → ready | held, at the tail of its line, with a fresh budget.
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: per job its id, and to run it with other arguments its payload and msgpack of [lanes, unique key], '' for the same
-- returns: per job: ok | missing | taken (another job has its unique key), or the state that it is in
-- event: revive

local request = require 'request'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local rerun = require 'rerun'

local M = {}

-- changes(i) → its payload, lanes and unique key, if they are other ones.
local function changes(i)
  local payload, packed = request.args[i * 3 - 1], request.args[i * 3]
  if payload == '' then return nil end
  local rest = packed ~= '' and cmsgpack.unpack(packed) or {}
  return payload, rest[1], rest[2]
end

function M.run()
  local ids, answers = {}, {}
  for at = 1, request.argc, 3 do ids[#ids + 1] = request.args[at] end
  local headers = jobs.read(ids)
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do answers[i] = rerun.rerun('revive', id, headers[i], changes(i)) end
  finish.write_all()
  return answers
end

return M
