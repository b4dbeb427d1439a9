-- Starts jobs one by one by their headers: those with rare fields, and those whose lane needs a closer look. Some of
-- them do not run, because they expired, have to wait for a lane, or are no jobs at all. h is a header.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local candidates = require 'candidates'
local counters = require 'counters'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local lanes = require 'lanes'
local paused_tasks = require 'paused_tasks'
local start_grouped = require 'start_grouped'
local transition = require 'transition'
local writes = require 'writes'

local M = {}

function M.reset()
  M.is_full = false   -- was there a job whose payload the answer had no room for?
end

-- ask_again(): this call looked at a job that it does not give to the worker, so there may be another one.
local function ask_again() start_grouped.answer[2] = 1 end

-- unlist(id, state) → the queue of a member of `ready` or `held` that stands for no job in this state. It is removed.
local function unlist(id, state)
  ask_again()
  if state == 'ready' then
    local member = jobs.ready_members[id]
    writes.remove(keys.ready, member)
    return string.match(member, '^[^\31]*')
  end
  local member = start_grouped.next_members[id]
  lanes.forget_waiter(member)
  return string.match(member, '^[^\31]*\31([^\31]*)')
end

-- bury_unreadable(id, state): buries a job in this state whose record cannot be read.
local function bury_unreadable(id, state)
  local queue = unlist(id, state)
  counters.add_to(counters.count_changes, state, queue, -1)
  transition.bury_unreadable(id, queue)
end

-- end_unrun(verb, id, h, state, reason): the job ends in this state without a run.
local function end_unrun(verb, id, h, state, reason)
  ask_again()
  h = jobs.decode_fully(id, h)
  h[REASON] = reason
  transition.move(verb, id, h, state, reason)
end

-- is_listed(id, h, state) → is that the state of the job, and its member the one that was found?
local function is_listed(id, h, state)
  if not h or h[STATE] ~= state then return false end
  return state == 'ready' or jobs.held_member(id, h) == start_grouped.next_members[id]
end

-- runnable(ids, headers, state) → the jobs that can run, and their headers, as many as the answer has room for. What
-- cannot run leaves the line.
local function runnable(ids, headers, state)
  local runnable_ids, runnable_headers = {}, {}
  for i = 1, #ids do
    local id, h = ids[i], headers[i]
    if jobs.unreadable[id] then
      bury_unreadable(id, state)
    elseif not is_listed(id, h, state) then
      unlist(id, state)
    elseif h[EXPIRES] > 0 and h[EXPIRES] <= request.now then
      end_unrun('expire', id, h, 'cancelled', 'expired')
    elseif start_grouped.too_large(h[SIZE]) then
      M.is_full = true
      ask_again()
      break
    else
      local n = #runnable_ids + 1
      runnable_ids[n], runnable_headers[n] = id, h
    end
  end
  return runnable_ids, runnable_headers
end

-- fetch_payloads(ids, headers): reads the payloads that are not part of their records.
local function fetch_payloads(ids, headers)
  local far_ids = {}
  for i = 1, #ids do
    if not headers[i].payload then far_ids[#far_ids + 1] = ids[i] end
  end
  start_grouped.fetch_payloads(far_ids)
end

-- blocking_lane(id, h) → the position of the lane of the job that has no room for it, or nothing. The lane of a
-- paused task is one of them.
local function blocking_lane(id, h)
  local paused = start_grouped.paused[h[TASK]] and paused_tasks.lane_of(id, h[TASK])
  return paused or #h[LANES] > 0 and lanes.blocking_lane(h)
end

-- hold(id, h, at): the job waits for the lane at this position. The lane that showed it shows another job.
local function hold(id, h, at)
  h = jobs.decode_fully(id, h)
  lanes.wait_in(h, at)
  transition.move('hold', id, h, 'held', record.lane_name(h[LANES][at]))
end

-- start(id, h, payload): the job runs.
local function start(id, h, payload)
  local packed, quota, queue = jobs.kept_records[id], candidates.quota, h[QUEUE]
  start_grouped.fence = start_grouped.fence + 1
  local waited = h[STATE] == 'ready' and request.now - h[SINCE] or 0   -- a job that was held waited for its lane
  counters.measure('wait', queue, waited, 1)
  if quota[queue] then quota[queue] = quota[queue] - 1 end
  h[CLAIM], h[STARTED] = start_grouped.claim, request.now
  if packed then
    packed = record.leased_record(start_grouped.run_front, start_grouped.fence, start_grouped.claim, packed)
  else
    h[FENCE], h[STARTS] = start_grouped.fence, h[STARTS] + 1
  end
  start_grouped.give(id, transition.move('lease', id, h, 'running', nil, packed), payload)
end

-- start_all(ids, state): starts the jobs that are in this state, can run, and have room in all their lanes.
function M.start_all(ids, state)
  local headers
  ids, headers = runnable(ids, jobs.read_waiting(ids, jobs.waiting_header), state)
  if #ids == 0 then return end
  lane_entry.fetch_lanes(headers, #ids)
  fetch_payloads(ids, headers)
  for i, id in ipairs(ids) do
    local h, payload = headers[i], start_grouped.far_payloads[id]
    local blocked = blocking_lane(id, h)
    if not h.payload and not payload then
      end_unrun('bury', id, h, 'dead', 'payload_lost')
    elseif blocked then
      hold(id, h, blocked)
    else
      start(id, h, payload or '')
    end
  end
end

return M
