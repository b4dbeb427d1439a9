-- Finds the first jobs of all queues, for a worker that serves all. `heads` has a score for each queue with ready jobs:
-- a place in line that no job of the queue precedes. Lines are opened in the order of these scores, and only if the
-- next job may be in them. So what one call reads does not depend on how many queues there are.

-- A script that adds to a line lowers its score (lib/writes.lua). Lease raises the scores of the lines that it opened
-- to where they begin afterwards, and removes the queues that are empty, paused or at their limit. A queue that goes on
-- is put back by finish.reopen_queues().

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local candidates = require 'candidates'
local known_jobs = require 'known_jobs'
local writes = require 'writes'
local call = request.call

local M = {}

local MAX_LINES = 400   -- that one call opens, should many scores be out of date

local names, scores              -- of the queues in `heads`, lowest score first, as far as they were read
local is_all_read                -- is that all of `heads`?
local next_queue                 -- position in them of the first queue that was not looked at yet
local opened                     -- the lines that were opened, as open_next_line() makes them
local closed                     -- names of queues that are paused or at their limit
local queued, first_queued, last_queued   -- the opened lines that have more jobs, by the rank of their next one

function M.reset()
  names, scores, is_all_read, next_queue = {}, {}, false, 1
  opened, closed = {}, {}
  queued, first_queued, last_queued = {}, 1, 0
end

-- read_heads(n): reads n more entries of `heads`.
local function read_heads(n)
  local from = #names
  local rows = call('ZRANGE', keys.heads, from, from + n - 1, 'WITHSCORES')
  is_all_read = #rows < 2 * n
  for i = 1, #rows, 2 do
    if rows[i] == '' then   -- the sentinel, which comes last
      is_all_read = true
      break
    end
    names[#names + 1], scores[#scores + 1] = rows[i], tonumber(rows[i + 1])
  end
  candidates.read_settings(names, from + 1)
end

-- next_head() → the score of the next queue as a rank, to compare it with those of jobs; nothing if no queue is left.
local function next_head()
  if next_queue > #names and not is_all_read then read_heads(math.min(2 * #names, 64)) end
  local score = scores[next_queue]
  if not score then return nil end
  if score < 0 or score >= 100 * HEAD_STEP then return '' end   -- somebody else wrote that
  return record.near_rank(math.floor(score / HEAD_STEP), score % HEAD_STEP)
end

-- enqueue_line(line): puts it among the lines that have more jobs. Mostly it becomes the first or the last of them.
local function enqueue_line(line)
  line.rank = string.sub(line.members[line.at], line.id_at - 15, line.id_at - 2)
  if first_queued <= last_queued and line.rank <= queued[first_queued].rank then
    first_queued = first_queued - 1
    queued[first_queued] = line
    return
  end
  local i = last_queued
  while i >= first_queued and queued[i].rank > line.rank do
    queued[i + 1] = queued[i]
    i = i - 1
  end
  queued[i + 1], last_queued = line, last_queued + 1
end

-- open_next_line(chunk): opens the line of the next queue and reads up to `chunk` members of it.
local function open_next_line(chunk)
  local queue, score = names[next_queue], scores[next_queue]
  next_queue = next_queue + 1
  if not candidates.may_lease_from[queue] then
    closed[#closed + 1] = queue
    return
  end
  local members, is_all = candidates.read_line(queue, '[' .. queue .. SEP, chunk)
  local line = {
    queue = queue, score = score, members = members, chunk = chunk,
    is_all = is_all,        -- has the line no more members?
    at = 1,                 -- position of its next member
    id_at = #queue + 17,    -- where ids begin in members: behind queue and rank
  }
  opened[#opened + 1] = line
  if members[1] then enqueue_line(line) end
end

-- read_on(line): reads more members of a line, twice as many as before. A limit of its queue was applied at first, so
-- then there is nothing more to read.
local function read_on(line)
  if line.is_all or candidates.quota[line.queue] then return end
  local members, n = line.members, #line.members
  line.chunk = line.chunk * 2
  local more, is_all = candidates.read_line(line.queue, '(' .. members[n], line.chunk)
  for i = 1, #more do members[n + i] = more[i] end
  line.is_all = is_all
end

-- take_run(ids, want, head): takes the next job, and the jobs behind it in its line as long as they come before the
-- next job of any other line. `head` is next_head().
local function take_run(ids, want, head)
  local line, sub = queued[first_queued], string.sub
  first_queued = first_queued + 1
  local limit = first_queued <= last_queued and queued[first_queued].rank or nil
  if head and (not limit or head < limit) then limit = head end
  local members, id_at, from = line.members, line.id_at, line.at
  local to = math.min(#members, from + want - #ids - 1)
  if limit then
    local most = to
    to = from
    while to < most and sub(members[to + 1], id_at - 15, id_at - 2) <= limit do to = to + 1 end
  end
  candidates.take(ids, members, from, to, id_at)
  line.at = to + 1
  if to == #members then read_on(line) end
  if members[to + 1] then enqueue_line(line) end
end

-- first_jobs(want) → the first jobs of all queues, by priority and then by their place in line; and whether there may
-- be more.
function M.first_jobs(want)
  local ids = {}
  read_heads(math.min(want + 1, 16))
  local chunk = math.ceil(want / math.max(#names, 1)) + 1
  local head = next_head()
  while #ids < want do
    local line = first_queued <= last_queued and queued[first_queued]
    if head and (not line or head <= line.rank) then
      if #opened + #closed == MAX_LINES then
        return ids, #ids > 0 or not known_jobs.unknown_here   -- otherwise the worker would ask again and again
      end
      open_next_line(chunk)
      head = next_head()
    elseif line then
      take_run(ids, want, head)
    else
      return ids, false
    end
  end
  return ids, true
end

-- update(n): writes where the opened lines begin, once the members that this call removes have left. Mostly these are
-- all n candidates. A line with jobs for other workers keeps its score, because its beginning was not read.
function M.update(n)
  local removed = opened[1] and writes.leaving(keys.ready, n)   -- nothing if these are all candidates
  for _, line in ipairs(opened) do
    local queue, members, at = line.queue, line.members, removed and 1 or line.at
    while removed and removed[members[at]] do at = at + 1 end
    local score = members[at] and writes.head_score(members[at], queue)
    local is_known = not known_jobs.passed_over[queue]
    if is_known and score and score ~= line.score then
      writes.forget_cached_head(queue)
      writes.put(4, 'ZADD', keys.heads, score, queue)
    elseif is_known and not score and line.is_all then
      writes.close_queue(queue)
    end
  end
  for _, queue in ipairs(closed) do writes.close_queue(queue) end
end

return M
