-- enqueue: – → ready | held | scheduled | running. One job or a page of them. A known id, or a taken unique key,
--     makes no second job.
-- FLAGS: none (a full server refuses new jobs, and only those)
-- KEYS of the fast path: meta idle counts ready jobs payloads queues stats events leases calls heads
-- KEYS: scheduled held dead finished tombs lanes limits holders openings batches roster chores timers unique cancels
--       waiting deaths
-- ARGV: per job its id, its form (times below 10^12 are delays from now; empty: the same as that of the job before) and
--       its payload; then, if the page before may not be stored yet, the id of a job of that page
-- returns: nothing, if that job is not stored, or if the call needs more than the fast path's keys; ready or running,
--          if all jobs were created and are in that state; otherwise per job: created | exists | unique | full, the id
--          of this job or of the one with its unique key, and the state; or, if its batch does not take it:
--          unknown | sealed | cancelled | ended, its id and nothing
-- event: enqueue; lease for a job that goes to an idle worker at once (lib/push.lua)

local request = require 'request'
local keys = require 'keys'
local enqueue_plain = require 'enqueue_plain'
local call = request.call

local M = {}

-- take_page_before() → the id of a job of the page before, if the call brings one. It is no argument any more.
local function take_page_before()
  if request.argc % 3 ~= 1 then return nil end
  request.argc = request.argc - 1
  return request.args[request.argc + 1]
end

function M.run()
  local id_before = take_page_before()
  if id_before and call('HEXISTS', keys.jobs, id_before) == 0 then return {} end
  local state = enqueue_plain.enter()
  if state then return state end
  local has_all_keys = keys.held ~= nil
  if not has_all_keys then return {} end
  return use('enqueue_each').run()
end

return M
