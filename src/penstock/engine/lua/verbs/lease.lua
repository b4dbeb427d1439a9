-- lease: ready | held → running. Gives a worker the first jobs of its queues; worker and call name the attempts.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues calls workers
-- ARGV: worker, call number, highest call number whose answer the worker has, how many jobs at most, how many bytes of
--       payload at most, 1 if a job may be pushed to the worker, then the names of its queues in strict order, or *
--       for all queues
-- returns: ok | unknown (register first) | stale (an old call whose answer has arrived), 1 if the worker should ask
--          again at once, then per job: id, record, and its payload ('' if it is part of the record). A call that is
--          sent again gets the jobs that it still holds, and never new ones.
-- event: lease; hold for candidates that have to wait for a lane, expire and bury for those that can no longer run

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local candidates = require 'candidates'
local finish = require 'finish'
local grouped_moves = require 'grouped_moves'
local jobs = require 'jobs'
local known_jobs = require 'known_jobs'
local lane_waiters = require 'lane_waiters'
local lanes = require 'lanes'
local lease_calls = require 'lease_calls'
local queue_heads = require 'queue_heads'
local start_each = require 'start_each'
local start_grouped = require 'start_grouped'
local writes = require 'writes'
local call = request.call

local M = {}

local worker
local want          -- how many jobs it asks for
local names         -- of its queues, or only '*'
local open_queues   -- its queues that may be leased from; false for a worker of all queues

-- answer_again() → the answer of a call that was made before: its jobs that are not settled yet.
local function answer_again()
  local ids = lease_calls.still_held(start_grouped.claim)
  if #ids > 0 then
    local records = call('HMGET', keys.jobs, unpack(ids))
    local payloads = call('HMGET', keys.payloads, unpack(ids))
    for i, id in ipairs(ids) do start_grouped.give(id, records[i], payloads[i] or '') end
  end
  return start_grouped.answer
end

-- missing() → how many more jobs the worker asks for. The answer has two values, and three for each job.
local function missing() return want - (#start_grouped.answer - 2) / 3 end

-- should_ask_again() → does the answer say so?
local function should_ask_again() return start_grouped.answer[2] == 1 end

-- read_queues(): reads the arguments that name the queues.
local function read_queues()
  names = {}
  for at = 7, request.argc do names[#names + 1] = request.args[at] end
  open_queues = names[1] ~= '*' and candidates.open_queues(names)
end

-- first_ready() → the first jobs that are ready in the worker's queues, and whether there may be more.
local function first_ready()
  if open_queues then return candidates.in_order(open_queues, want) end
  return queue_heads.first_jobs(want)
end

-- start_without_headers(ids, records, from, state) → the position after the jobs that lib/start_grouped.lua started.
local function start_without_headers(ids, records, from, state)
  local at = from
  if state == 'ready' then
    at = start_grouped.start_alone(ids, records, at, false)
    at = start_grouped.start_alone(ids, records, at, true)
  end
  return start_grouped.start_laned(ids, records, at, state)
end

-- start_with_headers(ids, records, from, state) → the position after the jobs that were left to lib/start_each.lua:
-- this one, and those behind it that certainly need a header, because they have rare fields or no record.
local function start_with_headers(ids, records, from, state)
  local others, at = { ids[from] }, from + 1
  while at <= #ids and (not records[at] or record.has_rare_fields(records[at])) do
    others[#others + 1], at = ids[at], at + 1
  end
  start_each.start_all(others, state)
  return at
end

-- start(ids, state): starts these jobs, which wait in this state, in their order, until the answer is full.
local function start(ids, state)
  if #ids == 0 then return end
  local records, from = call('HMGET', keys.jobs, unpack(ids)), 1
  while from <= #ids and not start_each.is_full do
    local at = start_without_headers(ids, records, from, state)
    if at == from then at = start_with_headers(ids, records, from, state) end
    from = at
  end
end

-- waiters_to_read(lane, n, n_lanes) → how many jobs of one queue may come from this lane, if n are wanted of so many
-- lanes: all from a single lane; otherwise one turn or, if the lane has no limit, the whole turns that make its share.
local function waiters_to_read(lane, n, n_lanes)
  if n_lanes == 1 then return n end
  local is_unlimited = lane.limit == math.huge and not lane.rate and lane.differs == ''
  if not is_unlimited then return lanes.MAX_SHOWN end
  return lanes.MAX_SHOWN * math.ceil(n / lanes.MAX_SHOWN / n_lanes)
end

-- read_waiters(n, turn) → rows of members of `held`, and the length of the longest row. There is a row for each lane
-- that this call touched and each open queue in it: the jobs that the lane would show now. `queue` is the name of the
-- queue, and ids begin at `id_at` in the members. No more rows are read once a turn of each makes n jobs.
local function read_waiters(n, turn)
  local rows, longest, left, n_lanes = {}, 0, n, #lanes.to_refill
  for _, name in ipairs(lanes.to_refill) do
    if left <= 0 then break end
    local lane = lanes.named(name)
    local to_read = waiters_to_read(lane, n, n_lanes)
    for _, queue in ipairs(open_queues or candidates.open_queues(lanes.queues(lane))) do
      if left <= 0 then break end
      local most = math.min(n_lanes == 1 and left or n, candidates.quota[queue] or n)
      if lane.lines[queue] and most > 0 then
        local row = lanes.next_waiters(lane, queue, most, to_read)
        row.queue, row.id_at = queue, #name + #queue + 18   -- behind lane, queue and rank
        rows[#rows + 1], longest = row, math.max(longest, #row)
        left = left - math.min(#row, turn)
      end
    end
  end
  return rows, longest
end

-- next_waiters(n) → up to n jobs of open queues that lanes would show now. Several lanes take turns.
local function next_waiters(n)
  local turn = #lanes.to_refill > 1 and lanes.MAX_SHOWN or n
  local rows, longest = read_waiters(n, turn)
  local ids, count, count_of_queue, next_members = {}, 0, {}, start_grouped.next_members
  for from = 1, longest, turn do
    if count == n then break end
    for _, row in ipairs(rows) do
      local queue, id_at, before = row.queue, row.id_at, count
      local allowed = (candidates.quota[queue] or n) - (count_of_queue[queue] or 0)
      local last = from + math.min(turn, n - count, allowed) - 1
      for i = from, math.min(last, #row) do
        local member = row[i]
        local id = string.sub(member, id_at)
        if not next_members[id] then
          count = count + 1
          ids[count] = id
        end
        next_members[id] = member
      end
      count_of_queue[queue] = (count_of_queue[queue] or 0) + count - before
    end
  end
  return ids
end

-- start_waiters(): starts jobs that wait in `held` for a slot that is free.
local function start_waiters()
  while missing() > 0 and not should_ask_again() do
    local ids = next_waiters(missing())
    if #ids == 0 then return end
    if known_jobs.unknown_here then ids = known_jobs.known_ids(ids) end
    start(ids, 'held')
  end
end

-- set_idle(name, is_idle): the worker is in `idle` under this name, or is not.
local function set_idle(name, is_idle)
  if is_idle then writes.add(keys.idle, 0, name .. worker) else writes.remove(keys.idle, name .. worker) end
end

-- rest(): a worker that got less than it asked for waits in `idle` until it is woken. If it has no job at all, the next
-- one may be pushed to it (lib/push.lua).
local function rest()
  local is_idle = missing() > 0 and not should_ask_again()
  for _, name in ipairs(names) do set_idle(name .. SEP, is_idle) end
  local got_nothing = is_idle and missing() == want
  local takes_pushed_jobs = request.args[6] == '1'
  set_idle(AT_REST, got_nothing and takes_pushed_jobs and #jobs.held_by(worker, 1) == 0)
  if is_idle and meta.asleep ~= '1' then writes.set_content(keys.meta, 'asleep', '1') end
end

-- save_fence(): stores the last fence that was given out, if any was.
local function save_fence()
  local last = start_grouped.fence
  if last > start_grouped.first_fence then writes.set_content(keys.meta, 'fence', last) end
end

function M.run()
  worker, want = request.args[1], tonumber(request.args[4])
  if not call('ZSCORE', keys.workers, worker) then return { 'unknown', 0 } end
  local calls_made, known = lease_calls.add(worker, tonumber(request.args[2]), tonumber(request.args[3]))
  if known == 'stale' then return { 'stale', 0 } end
  if known == 'made' then return answer_again() end

  read_queues()
  local ids, may_be_more = first_ready()
  start(ids, 'ready')
  if not may_be_more and not candidates.was_cut_short then
    start_waiters()   -- they come after all jobs that are ready
  elseif may_be_more and #ids < want or next(lane_waiters.added) then
    start_grouped.answer[2] = 1   -- not all queues were looked at, or some of the candidates have to wait
  end

  save_fence()
  for _, kind in ipairs(record.kinds) do grouped_moves.move_kind(kind, 'ready', 'running') end
  queue_heads.update(#ids)
  call('HSET', keys.calls, worker, calls_made)
  rest()
  finish.write_all()
  return start_grouped.answer
end

return M
