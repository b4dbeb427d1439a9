-- Heads: the queues that have jobs in line, for a worker of all queues. `heads` has of each a place that none of its jobs is before.
-- So lines are opened in the order of these places, and only those that a job may come from: what one call looks at does not
-- depend on how many queues there are. Whoever enters a line lowers its place (lib/writes.lua); lease raises those that it has
-- looked at to where the line begins by then, and takes out what is empty, paused or at its limit. Who lets such a queue go on puts
-- it back (reopen in lib/finish.lua).

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local candidates = require 'candidates'
local known_jobs = require 'known_jobs'
local writes = require 'writes'
local call = request.call

local M = {}

local head_names, head_places, next_head, all_heads, opened, closed, fronts, front_at, back_at

local MOST_LINES = 400   -- that one call opens, should the places of many be out of date

function M.reset()
  head_names, head_places = {}, {}   -- queues and their places, in that order, as far as they were read
  next_head, all_heads = 1, false   -- the first of these whose line is not open yet; were all of them read?
  opened = {}   -- lines: those that were opened
  closed = {}   -- names of queues that are paused or at their limit
  fronts, front_at, back_at = {}, 1, 0   -- those of the lines that have more, in the order of their next jobs
end

-- read_names(n): n more of them.
local function read_names(n)
  local from = #head_names
  local rows = call('ZRANGE', keys.heads, from, from + n - 1, 'WITHSCORES')
  all_heads = #rows < 2 * n
  for i = 1, #rows, 2 do
    if rows[i] == '' then all_heads = true break end   -- the sentinel, which comes last
    head_names[#head_names + 1], head_places[#head_places + 1] = rows[i], tonumber(rows[i + 1])
  end
  candidates.read_settings(head_names, from + 1)
end

-- next_place() → the place of the next line that is not open yet, to be compared with ranks; nothing if there is none.
local function next_place()
  if next_head > #head_names and not all_heads then read_names(math.min(2 * #head_names, 64)) end
  local score = head_places[next_head]
  if not score then return nil end
  if score < 0 or score >= 100 * HEAD_STEP then return '' end   -- somebody else wrote that
  return record.near_rank(math.floor(score / HEAD_STEP), score % HEAD_STEP)
end

-- line_up_front(front): it has its turn when its next job comes. Mostly that is the last one or the first.
local function line_up_front(front)
  front.rank = string.sub(front.members[front.at], front.id_at - 15, front.id_at - 2)
  local at = back_at
  if front_at <= back_at and front.rank <= fronts[front_at].rank then
    front_at = front_at - 1
    fronts[front_at] = front
    return
  end
  while at >= front_at and fronts[at].rank > front.rank do
    fronts[at + 1] = fronts[at]
    at = at - 1
  end
  fronts[at + 1], back_at = front, back_at + 1
end

-- open_line(chunk): the next line, of which so many members are read at first.
local function open_line(chunk)
  local queue, score = head_names[next_head], head_places[next_head]
  next_head = next_head + 1
  if not candidates.may_lease_from[queue] then
    closed[#closed + 1] = queue
    return
  end
  local members, is_all = candidates.read_line(queue, '[' .. queue .. SEP, chunk)
  local front = { queue = queue, place = score, members = members, is_all = is_all, at = 1, chunk = chunk, id_at = #queue + 17 }
  opened[#opened + 1] = front
  if members[1] then line_up_front(front) end
end

-- read_on(front): more of a line that was read to its end, unless there is none, or its limit allows no more.
local function read_on(front)
  if front.is_all or candidates.quota[front.queue] then return end
  local n = #front.members
  front.chunk = front.chunk * 2
  local more, is_all = candidates.read_line(front.queue, '(' .. front.members[n], front.chunk)
  for i = 1, #more do front.members[n + i] = more[i] end
  front.is_all = is_all
end

-- take_run(ids, want, unopened): the next job, and those behind it in its line that come before any of another queue; `unopened` is
-- where the lines that are not open yet begin.
local function take_run(ids, want, unopened)
  local front, sub = fronts[front_at], string.sub
  front_at = front_at + 1
  local other = front_at <= back_at and fronts[front_at].rank
  local limit = unopened and (not other or unopened < other) and unopened or other
  local members, id_at, at = front.members, front.id_at, front.at
  local to = math.min(#members, at + want - #ids - 1)
  if limit then
    local most = to
    to = at
    while to < most and sub(members[to + 1], id_at - 15, id_at - 2) <= limit do to = to + 1 end
  end
  for i = at, to do candidates.take(ids, members[i], id_at) end
  front.at = to + 1
  if to == #members then read_on(front) end
  if members[to + 1] then line_up_front(front) end
end

-- first_jobs(want) → the first jobs of all queues, by priority and then by arrival, and whether there may be more.
function M.first_jobs(want)
  local ids = {}
  read_names(math.min(want + 1, 16))
  local chunk = math.ceil(want / math.max(#head_names, 1)) + 1
  local unopened = next_place()
  while #ids < want do
    local front = front_at <= back_at and fronts[front_at]
    if unopened and (not front or unopened <= front.rank) then
      if #opened + #closed == MOST_LINES then return ids, #ids > 0 or not known_jobs.unknown_here end   -- else it would ask again and again
      open_line(chunk)
      unopened = next_place()
    elseif front then
      take_run(ids, want, unopened)
    else
      return ids, false
    end
  end
  return ids, true
end

-- update(n): where the lines that were looked at begin, once those that this call takes have left them: mostly all n
-- candidates. Lines with jobs for other workers keep their place: where these begin was not read.
function M.update(n)
  local gone = opened[1] and writes.leaving(keys.ready, n)
  for _, front in ipairs(opened) do
    local at, members = gone and 1 or front.at, front.members
    while gone and gone[members[at]] do at = at + 1 end
    local score = members[at] and writes.head_score(members[at], front.queue)
    local is_known = not known_jobs.passed_over[front.queue]
    if is_known and score and score ~= front.place then
      writes.forget_cached_head(front.queue)
      writes.put(4, 'ZADD', keys.heads, score, front.queue)
    elseif is_known and not score and front.is_all then
      writes.close_queue(front.queue)
    end
  end
  for _, queue in ipairs(closed) do writes.close_queue(queue) end
end

return M
