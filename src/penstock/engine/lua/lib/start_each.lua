-- The start of jobs that do not simply run: of those that say something rare, or whose lane needs a closer look. Some will not run at all.

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
  M.is_full = false   -- does no other job fit into the answer?
end

-- unlist(id, state) → something in the line, or among those that a lane shows next, is not a job that waits there; its queue.
local function unlist(id, state)
  start_grouped.answer[2] = 1
  if state == 'ready' then
    writes.remove(keys.ready, jobs.ready_members[id])
    return string.match(jobs.ready_members[id], '^[^\31]*')
  end
  lanes.forget_waiter(start_grouped.next_members[id])
  return string.match(start_grouped.next_members[id], '^[^\31]*\31([^\31]*)')
end

-- bury_unreadable(id, state): it waits so, and its header cannot be understood.
local function bury_unreadable(id, state)
  local queue = unlist(id, state)
  counters.add_to(counters.count_changes, state, queue, -1)
  transition.bury_unreadable(id, queue)
end

-- end_unrun(verb, id, h, outcome, reason): it will not run.
local function end_unrun(verb, id, h, outcome, reason)
  h = jobs.decode_fully(id, h)
  start_grouped.answer[2], h[REASON] = 1, reason
  transition.move(verb, id, h, outcome, reason)
end

-- runnable(some, headers, state) → those that can run; what cannot leaves the line. Not more than fits into the answer.
local function runnable(some, headers, state)
  local found, taken = {}, {}
  for i = 1, #some do
    local id, h = some[i], headers[i]
    if jobs.unreadable[id] then
      bury_unreadable(id, state)
    elseif not h or h[STATE] ~= state or (state == 'held' and jobs.held_member(id, h) ~= start_grouped.next_members[id]) then
      unlist(id, state)
    elseif h[EXPIRES] > 0 and h[EXPIRES] <= request.now then
      end_unrun('expire', id, h, 'cancelled', 'expired')
    elseif start_grouped.too_large(h[SIZE]) then
      start_grouped.answer[2], M.is_full = 1, true
      break
    else
      found[#found + 1], taken[#taken + 1] = h, id
    end
  end
  return taken, found
end

-- park(id, h, at): this lane of the job has no room, so it waits there, and the one that showed it shows another.
local function park(id, h, at)
  h = jobs.decode_fully(id, h)
  lanes.wait_in(h, at)
  transition.move('hold', id, h, 'held', record.lane_name(h[LANES][at]))
end

-- start(id, h, payload): it runs.
local function start(id, h, payload)
  local packed = jobs.kept_records[id]
  start_grouped.fence = start_grouped.fence + 1
  counters.measure('wait', h[QUEUE], h[STATE] == 'ready' and request.now - h[SINCE] or 0, 1)   -- while it was held it waited for a lane
  if candidates.quota[h[QUEUE]] then candidates.quota[h[QUEUE]] = candidates.quota[h[QUEUE]] - 1 end
  h[CLAIM], h[STARTED] = start_grouped.claim, request.now
  if packed then
    packed = record.leased_record(start_grouped.run_front, start_grouped.fence, start_grouped.claim, packed)
  else
    h[FENCE], h[STARTS] = start_grouped.fence, h[STARTS] + 1
  end
  start_grouped.give(id, transition.move('lease', id, h, 'running', nil, packed), payload)
end

-- fetch_contents(ids, headers): the payloads of these, as far as they are not part of their records.
local function fetch_contents(some, headers)
  local far = {}
  for i = 1, #some do
    if not headers[i].payload then far[#far + 1] = some[i] end
  end
  start_grouped.fetch_payloads(far)
end

-- start_all(some, state): starts those of these that can run and have room in all their lanes.
function M.start_all(some, state)
  local taken, headers = runnable(some, jobs.read_waiting(some, jobs.waiting_header), state)
  if #taken == 0 then return end
  lane_entry.fetch_lanes(headers, #taken)
  fetch_contents(taken, headers)
  for i, id in ipairs(taken) do
    local h = headers[i]
    local blocked = start_grouped.paused[h[TASK]] and paused_tasks.lane_of(id, h[TASK]) or #h[LANES] > 0 and lanes.blocking_lane(h)
    if not (h.payload or start_grouped.far_payloads[id]) then
      end_unrun('bury', id, h, 'dead', 'payload_lost')
    elseif blocked then
      park(id, h, blocked)
    else
      start(id, h, start_grouped.far_payloads[id] or '')
    end
  end
end

return M
