-- The start of jobs that do not simply run: of those that say something rare, or whose lane needs a closer look. Some will not run at all.

local full = false   -- does no other job fit into the answer?

-- unlist(id, state) → something in the line, or among those that a lane shows next, is not a job that waits there; its queue.
local function unlist(id, state)
  answer[2] = 1
  if state == 'ready' then
    drop(ready, lines[id])
    return string.match(lines[id], '^[^\31]*')
  end
  forget_waiter(next_lines[id])
  return string.match(next_lines[id], '^[^\31]*\31([^\31]*)')
end

-- bury_unreadable(id, state): it waits so, and its header cannot be understood.
local function bury_unreadable(id, state)
  local queue = unlist(id, state)
  tally(deltas, state, queue, -1)
  quarantine(id, queue)
end

-- end_unrun(verb, id, h, outcome, reason): it will not run.
local function end_unrun(verb, id, h, outcome, reason)
  h = take_apart(id, h)
  answer[2], h[REASON] = 1, reason
  move(verb, id, h, outcome, reason)
end

-- runnable(some, headers, state) → those that can run; what cannot leaves the line. Not more than fits into the answer.
local function runnable(some, headers, state)
  local found, taken = {}, {}
  for i = 1, #some do
    local id, h = some[i], headers[i]
    if spoilt[id] then
      bury_unreadable(id, state)
    elseif not h or h[STATE] ~= state or (state == 'held' and waiting_line(id, h) ~= next_lines[id]) then
      unlist(id, state)
    elseif h[EXPIRES] > 0 and h[EXPIRES] <= now then
      end_unrun('expire', id, h, 'cancelled', 'expired')
    elseif too_much(h[SIZE]) then
      answer[2], full = 1, true
      break
    else
      found[#found + 1], taken[#taken + 1] = h, id
    end
  end
  return taken, found
end

-- park(id, h, at): this lane of the job has no room, so it waits there, and the one that showed it shows another.
local function park(id, h, at)
  h = take_apart(id, h)
  wait_under(h, at)
  move('hold', id, h, 'held', lane_name(h[LANES][at]))
end

-- start(id, h, payload): it runs.
local function start(id, h, payload)
  local packed = stored[id]
  fence = fence + 1
  measure('wait', h[QUEUE], h[STATE] == 'ready' and now - h[SINCE] or 0, 1)   -- while it was held it waited for a lane
  if quota[h[QUEUE]] then quota[h[QUEUE]] = quota[h[QUEUE]] - 1 end
  h[CLAIM], h[STARTED] = claim, now
  if packed then
    packed = leased_record(run_front, fence, claim, packed)
  else
    h[FENCE], h[STARTS] = fence, h[STARTS] + 1
  end
  give(id, move('lease', id, h, 'running', nil, packed), payload)
end

-- fetch_contents(ids, headers): the payloads of these, as far as they are not part of their records.
local function fetch_contents(some, headers)
  local far = {}
  for i = 1, #some do
    if not headers[i].payload then far[#far + 1] = some[i] end
  end
  fetch_payloads(far)
end

-- begin(some, state): starts those of these that can run and have room in all their lanes.
local function begin(some, state)
  local taken, headers = runnable(some, headers_of(some, glimpse), state)
  if #taken == 0 then return end
  meet(headers, #taken)
  fetch_contents(taken, headers)
  for i, id in ipairs(taken) do
    local h = headers[i]
    local blocked = halted[h[TASK]] and halt(id, h[TASK]) or #h[LANES] > 0 and obstacle(h)
    if not (h.payload or distant[id]) then
      end_unrun('bury', id, h, 'dead', 'payload_lost')
    elseif blocked then
      park(id, h, blocked)
    else
      start(id, h, distant[id] or '')
    end
  end
end
