-- lease: ready | held → running. Gives a worker the first jobs of its queues; the pair (worker, call) names the attempts.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues calls workers
-- ARGV: worker, call number, highest call number whose answer the worker has, how many at most, how many bytes of
--       payload at most, 1 if it takes a job by letter, the names of its queues in strict order or * for all
-- returns: ok | unknown (register first) | stale (an old call, already answered), 1 if it should ask again at once,
--          then per job: id, header, and its payload unless that is part of the former. A resent call gets what it still holds again, and never anything new.
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

local worker, want, names, open

-- given_again() → what an earlier call gave, as far as it is not settled.
local function given_again()
  local before = lease_calls.still_held(start_grouped.claim)
  if #before > 0 then
    local packed, contents = call('HMGET', keys.jobs, unpack(before)), call('HMGET', keys.payloads, unpack(before))
    for i, id in ipairs(before) do start_grouped.give(id, packed[i], contents[i] or '') end
  end
  return start_grouped.answer
end

-- begin_all(some, state): starts jobs that wait so, in their order: a run of those without a header, then one of others, and so on.
local function begin_all(some, state)
  local raw, at = #some > 0 and call('HMGET', keys.jobs, unpack(some)), 1
  while at <= #some and not start_each.is_full do
    local before, others = at, {}
    if state == 'ready' then at = start_grouped.start_alone(some, raw, start_grouped.start_alone(some, raw, at, false), true) end
    at = start_grouped.start_laned(some, raw, at, state)
    while at == before + #others and at <= #some and (#others == 0 or not raw[at] or record.has_rare_fields(raw[at])) do
      others[#others + 1], at = some[at], at + 1
    end
    if #others > 0 then start_each.start_all(others, state) end
  end
end

-- waiting_rows(n) → a list for each lane touched so far and each open queue that it has jobs of: the members of those that it would
-- show now, until a turn of each makes n; and how long the longest is. Of lanes without any limit so many that together they are n,
-- in whole turns; of others as many as are a turn.
local function waiting_rows(n)
  local rows, longest, left, alone = {}, 0, n, #lanes.to_refill == 1
  local share = lanes.MAX_SHOWN * math.ceil(n / lanes.MAX_SHOWN / math.max(#lanes.to_refill, 1))
  for _, name in ipairs(lanes.to_refill) do
    if left <= 0 then break end
    local lane = lanes.named(name)
    local is_free = lane.limit == math.huge and not lane.rate and lane.differs == ''
    local turn = alone and n or is_free and share or lanes.MAX_SHOWN
    for _, queue in ipairs(open or candidates.open_queues(lanes.queues(lane))) do
      if left <= 0 then break end
      local most = lane.lines[queue] and math.min(alone and left or n, candidates.quota[queue] or n) or 0
      local members = most > 0 and lanes.next_waiters(lane, queue, most, turn) or {}
      members.queue, members.id_at = queue, #name + #queue + 18   -- behind lane, queue and rank
      rows[#rows + 1], longest = members, math.max(longest, #members)
      left = left - math.min(#members, alone and n or lanes.MAX_SHOWN)
    end
  end
  return rows, longest
end

-- next_waiters(n) → up to n jobs of open queues that the lanes touched so far would show now. One that is alone takes no turns.
local function next_waiters(n)
  local found, count, chosen, from, turn = {}, 0, {}, 1, #lanes.to_refill > 1 and lanes.MAX_SHOWN or n
  local rows, longest = waiting_rows(n)
  while from <= longest and count < n do
    for _, row in ipairs(rows) do
      local queue, at, before = row.queue, row.id_at, count
      local most = math.min(turn, n - count, (candidates.quota[queue] or n) - (chosen[queue] or 0))
      for i = from, math.min(from + most - 1, #row) do
        local member = row[i]
        local id = string.sub(member, at)
        if not start_grouped.next_members[id] then found[count + 1], count = id, count + 1 end
        start_grouped.next_members[id] = member
      end
      chosen[queue] = (chosen[queue] or 0) + count - before
    end
    from = from + turn
  end
  return found
end

-- rest(): this worker sleeps until it is woken, if it could have taken more. To one that has nothing at all the next job may
-- come by letter (lib/push.lua).
local function rest()
  local hungry = #start_grouped.answer - 2 < want * 3 and start_grouped.answer[2] == 0
  for _, name in ipairs(names) do
    if hungry then writes.add(keys.idle, 0, name .. SEP .. worker) else writes.remove(keys.idle, name .. SEP .. worker) end
  end
  local free = hungry and #start_grouped.answer == 2 and request.args[6] == '1' and #jobs.held_by(worker, 1) == 0
  if free then writes.add(keys.idle, 0, AT_REST .. worker) else writes.remove(keys.idle, AT_REST .. worker) end
  if hungry and meta.asleep ~= '1' then writes.set_content(keys.meta, 'asleep', '1') end
end

function M.run()
  worker, want = request.args[1], tonumber(request.args[4])
  if not call('ZSCORE', keys.workers, worker) then return { 'unknown', 0 } end
  local made, known = lease_calls.add(worker, tonumber(request.args[2]), tonumber(request.args[3]))
  if known == 'stale' then return { 'stale', 0 } end
  if known == 'made' then return given_again() end
  names = {}
  for at = 7, request.argc do names[#names + 1] = request.args[at] end
  local all = names[1] == '*'
  open = not all and candidates.open_queues(names)
  local ids, more
  if all then ids, more = queue_heads.first_jobs(want) else ids, more = candidates.in_order(open, want) end
  if more and #ids < want then start_grouped.answer[2] = 1 end
  -- What a lane would show next comes after those that are shown, so it has to wait while there may be more of these.
  begin_all(ids, 'ready')
  while not more and not candidates.was_cut_short and (#start_grouped.answer - 2) / 3 < want and start_grouped.answer[2] == 0 do
    local waiting_ids = next_waiters(want - (#start_grouped.answer - 2) / 3)
    if #waiting_ids == 0 then break end
    begin_all(known_jobs.unknown_here and known_jobs.known_ids(waiting_ids) or waiting_ids, 'held')
  end
  if start_grouped.fence > start_grouped.first_fence then writes.set_content(keys.meta, 'fence', start_grouped.fence) end
  if (more or candidates.was_cut_short) and next(lane_waiters.added) then start_grouped.answer[2] = 1 end
  for _, one in ipairs(record.kinds) do grouped_moves.move_kind(one, 'ready', 'running') end
  queue_heads.update(#ids)
  call('HSET', keys.calls, worker, made)
  rest()
  finish.write_all()
  return start_grouped.answer
end

return M
