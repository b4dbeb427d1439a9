-- reconcile: makes one page of one part agree with the records of jobs, which are the truth. A part is a key. A pass
--    over `jobs` adds what the other keys lack; a pass over another key removes what does not belong there.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues nodes skills crons
--       ticks keepers workers results attempts logs retired calls lives
-- ARGV: part, cursor, how many at most
-- returns: the next cursor or 0, how many things were mended
-- event: those of the jobs that had to be buried
-- In the code, `h` is the header of a job, `b` a batch, and `s` the state of a schedule.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local batches = require 'batches'
local finish = require 'finish'
local jobs = require 'jobs'
local lanes = require 'lanes'
local messages = require 'messages'
local recount_batches = require 'recount_batches'
local recount_lanes = require 'recount_lanes'
local schedules = require 'schedules'
local skills = require 'skills'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

local part, n_mended, highest

local IS_HASH = {   -- part → true; the others are sorted sets
  jobs = true, payloads = true, results = true, attempts = true, logs = true, unique = true, waiting = true,
  calls = true, nodes = true, meta = true, lanes = true, limits = true, crons = true, batches = true, queues = true,
}

-- fix(act, …): mends one thing.
local function fix(act, ...)
  n_mended = n_mended + 1
  act(...)
end

-- note_highest(name, value): a header has this sequence or fence.
local function note_highest(name, value)
  if value > (highest[name] or 0) then highest[name] = value end
end

-- ensure(key, score, member): the sorted set has this member, with this score.
local function ensure(key, score, member)
  local kept = call('ZSCORE', key, member)
  if not kept or tonumber(kept) ~= tonumber(score) then fix(writes.add, key, score, member) end
end

local function is_unfinished(h) return jobs.waits(h) or h[STATE] == 'running' end

-- has_contents(h) → may something be stored for the job under other keys, since it is no tombstone?
local function has_contents(h) return h and h[COMPACT] == 0 end

-- The pass over `jobs`: what a header asks for is there.

-- mend_payload(id, h) → was the job buried, since it waits and its payload is lost? If it does not wait, it is
-- noted that the payload is lost, so that the job is buried should it have to run again.
local function mend_payload(id, h)
  local has_payload = h.payload or call('HEXISTS', keys.payloads, id) == 1
  if has_payload then return false end
  if jobs.waits(h) then
    h[REASON] = 'payload_lost'
    fix(transition.move, 'bury', id, h, 'dead', 'payload_lost')
    return true
  end
  if h[STATE] ~= 'done' and has_contents(h) and h[SIZE] >= 0 then
    h[SIZE] = -1
    fix(writes.save, id, h)
  end
  return false
end

-- mend_lanes(id, h): the job's lanes know of it. A lock that belongs to the job says so itself.
local function mend_lanes(id, h)
  if recount_lanes.is_own(id, h) and (h.is_owner or h[STATE] == 'running') then return end
  if h.is_owner then
    local packed = call('HGET', keys.jobs, id)
    fix(writes.put, 2, 'HSET', keys.jobs, id, READY_FRONT .. string.sub(packed, FRONT + 1))
  end
  for i, spec in ipairs(h[LANES]) do
    if recount_lanes.holds(h, i) then ensure(keys.holders, 0, record.lane_name(spec) .. SEP .. id) end
  end
  n_mended = n_mended + recount_lanes.introduce(id, h)
end

-- mend_guards(id, h): its expiry, its cancelling and its unique key.
local function mend_guards(id, h)
  if jobs.waits(h) and h[EXPIRES] > 0 then ensure(keys.timers, h[EXPIRES], 'expire' .. SEP .. id) end
  if h[CANCELLING] == 1 then ensure(keys.cancels, 0, string.match(h[CLAIM], '^[^\31]*') .. SEP .. id) end
  if h[UNIQUE] ~= '' and is_unfinished(h) and not call('HGET', keys.unique, h[UNIQUE]) then
    fix(writes.set, keys.unique, h[UNIQUE], id)
  end
end

-- mend_membership(id, h): its entries in `roster`.
local function mend_membership(id, h)
  local b = batches.of_member(h[BATCH], h[CREATED])
  if not b then return end
  for _, entry in ipairs(recount_batches.entries(b, id, h[STATE], h[FINISH])) do ensure(keys.roster, 0, entry) end
end

-- mend(id, h): everything that follows from this header is there.
local function mend(id, h)
  note_highest('seq', h[SEQ])
  note_highest('fence', h[FENCE])
  call('HSETNX', keys.queues, h[QUEUE], '')
  if mend_payload(id, h) then return end
  ensure(jobs.index_entry(id, h))
  if h[STATE] == 'dead' and has_contents(h) then ensure(keys.deaths, 0, transition.death_member(id, h)) end
  if #h[LANES] > 0 then mend_lanes(id, h) end
  mend_guards(id, h)
  mend_membership(id, h)
  if h[RESULT] == 1 and has_contents(h) and call('HEXISTS', keys.results, id) == 0 then
    h[RESULT] = 2   -- it is not kept
    fix(writes.save, id, h)
  end
end

-- bury_unreadable(id): the record cannot be understood. The job is buried with its payload, or with all that is left.
local function bury_unreadable(id)
  n_mended = n_mended + 1
  jobs.decoded[id], jobs.unreadable[id] = transition.bury_unreadable(id), nil
  call('HSETNX', keys.queues, jobs.decoded[id][QUEUE], '')
end

-- may_be_id(id) → may a job have this id?
local function may_be_id(id) return not string.find(id, '%c') end

-- mend_job(id, h): one job of the pass; without h, its record cannot be understood.
local function mend_job(id, h)
  if h then
    mend(id, h)
  elseif may_be_id(id) then
    bury_unreadable(id)
  else
    fix(writes.delete, keys.jobs, id)
  end
end

-- Batches.

-- chore_of(b) → which chore is due for it, and when; '' if none is.
local function chore_of(b)
  if b[B_PHASE] == 'open' then return 'abandon', b[B_ADDED] + b[B_ABANDON_AFTER] end
  if b[B_PHASE] == 'ended' then return 'forget', b[B_ENDED] + b[B_KEEP] end
  return b[B_CHORE], request.now
end

-- mend_batch(b): its parent has entries for it, its numbers are right, it is paused while it is being cancelled, and
-- its chore is in `chores`.
local function mend_batch(b)
  local parent = batches.of_member(b[B_PARENT], b[B_CREATED])
  local state = b[B_PHASE] == 'ended' and b[B_OUTCOME] or 'running'
  for _, entry in ipairs(parent and recount_batches.entries(parent, '{' .. b.id, state, b[B_FINISH]) or {}) do
    if not call('ZSCORE', keys.roster, entry) then fix(call, 'ZADD', keys.roster, 0, entry) end
  end
  for _, recounted in ipairs({ parent or b, b }) do
    if recount_batches.recount(recounted) then n_mended = n_mended + 1 end
  end
  if b[B_PHASE] == 'ended' and batches.pending(b) > 0 then fix(batches.reopen, b) end
  local is_paused = lanes.unpack_list(call('HGET', keys.limits, 'batch:' .. b.id))[2] == 1
  if is_paused ~= (b[B_CHORE] == 'cancel') then fix(batches.set_paused, b, not is_paused) end
  local chore, at = chore_of(b)
  local member = chore .. SEP .. b.id
  if chore ~= '' and not call('ZSCORE', keys.chores, member) then fix(writes.add_later, keys.chores, at, member) end
end

-- The pass over another key: belongs[part](member, value, id, h) → may this member, or field, stay? `value` is its
-- score or value. `id` is its last part, mostly the id of a job, and h the header of that job.
local belongs = {}

-- is_indexed(member, _, id, h) → does the job's state put it here, as this member?
local function is_indexed(member, _, id, h)
  if not h then return false end
  local key, _, own_member = jobs.index_entry(id, h)
  return key == keys[part] and own_member == member
end

-- is_indexed_or_buried(…) → the same; an unfinished or dead job is buried if its record cannot be understood.
local function is_indexed_or_buried(member, value, id, h)
  if jobs.unreadable[id] then bury_unreadable(id) end
  return is_indexed(member, value, id, h)
end

-- is_indexed_or_forgotten(…) → the same; a job that had ended is forgotten, unless there is a payload worth
-- burying.
local function is_indexed_or_forgotten(member, value, id, h)
  if jobs.unreadable[id] and call('HEXISTS', keys.payloads, id) == 0 then
    fix(writes.delete, keys.jobs, id)
    jobs.unreadable[id] = nil
  end
  return is_indexed(member, value, id, h)
end

belongs.ready = is_indexed_or_buried
belongs.held = is_indexed_or_buried
belongs.scheduled = is_indexed_or_buried
belongs.leases = is_indexed_or_buried
belongs.dead = is_indexed_or_buried
belongs.finished = is_indexed_or_forgotten
belongs.tombs = is_indexed_or_forgotten

function belongs.timers(_, _, _, h) return h and jobs.waits(h) and h[EXPIRES] > 0 end

function belongs.cancels(_, _, _, h) return h and h[CANCELLING] == 1 end

function belongs.deaths(member, _, id, h)
  return has_contents(h) and h[STATE] == 'dead' and transition.death_member(id, h) == member
end

function belongs.payloads(_, _, _, h) return has_contents(h) and h[STATE] ~= 'done' and not h.payload end

function belongs.results(_, _, _, h) return has_contents(h) and h[RESULT] == 1 end

function belongs.attempts(_, _, _, h) return has_contents(h) end

function belongs.logs(_, _, _, h) return has_contents(h) end

function belongs.unique(key, id)
  local h = jobs.read({ id })[1]
  return h and h[UNIQUE] == key and is_unfinished(h)
end

-- Clients that wait for a job or batch which is not unfinished are told that it has ended.
function belongs.waiting(awaited, clients, _, h)
  local batch_id = string.match(awaited, '^{%l+}(.*)')
  local b = batch_id and batches.get(batch_id)
  if b and b[B_PHASE] ~= 'ended' then return true end
  if h and is_unfinished(h) then return true end
  for client in string.gmatch(clients, '[^\31]+') do messages.send('to:' .. client, 'end' .. SEP .. awaited) end
end

-- Lanes.

function belongs.holders(member, _, id, h) return recount_lanes.is_holder(member, id, h) end

function belongs.openings(lane) return call('HEXISTS', keys.lanes, lane) == 1 end

function belongs.lanes(name)
  if recount_lanes.recounted(name) then n_mended = n_mended + 1 end
  return true
end

-- A paused task is named in `meta`, too.
function belongs.limits(name, settings)
  local task, halted = string.match(name, '^task:(.*)$'), call('HGET', keys.meta, 'halted') or ''
  local is_paused = task and lanes.unpack_list(settings)[2] == 1
  if is_paused and not string.find(SEP .. halted .. SEP, SEP .. task .. SEP, 1, true) then
    fix(call, 'HSET', keys.meta, 'halted', task .. SEP .. halted)
  end
  return true
end

-- Batches.

function belongs.roster(entry, _, _, h) return recount_batches.belongs(entry, h) end

function belongs.batches(field, _, id)
  local b = batches.get(id)
  if b and string.sub(field, 1, 5) == 'state' then mend_batch(b) end
  return b
end

function belongs.chores(member, _, id)
  local chore, b = string.match(member, '^[^\31]*'), batches.get(id)
  if chore == 'forget' then return not b or b[B_PHASE] == 'ended' end
  return b and (b[B_CHORE] == chore or (chore == 'abandon' and b[B_PHASE] == 'open'))
end

-- Workers.

local function is_live(worker) return call('ZSCORE', keys.workers, worker) end

-- A live worker has an entry in `nodes`. What it had registered there, if that is lost, nobody knows.
function belongs.workers(worker)
  if call('ZSCORE', keys.retired, worker) then return false end
  if call('HEXISTS', keys.nodes, worker) == 0 then
    local life = tonumber(call('ZSCORE', keys.lives, worker) or 0)
    fix(writes.set, keys.nodes, worker, cmsgpack.pack({ '{}', { '*' }, life, request.now }))
  end
  return true
end

function belongs.nodes(worker, node)
  if not is_live(worker) then return false end
  local life = tonumber(lanes.unpack_list(node)[3]) or 0   -- 0: what it registered is lost
  if life > 0 then ensure(keys.lives, life, worker) end
  if skills.remember_skills(worker) then n_mended = n_mended + 1 end
  return true
end

function belongs.lives(worker) return is_live(worker) end

function belongs.calls(worker) return is_live(worker) end

function belongs.idle(member) return is_live(jobs.last_part(member)) end

function belongs.skills(member, _, worker)
  return is_live(worker) and skills.has_skills(worker, string.match(member, '^[^\31]*'))
end

-- Only what `meta` says of skills is looked at.
function belongs.meta(field)
  local what, of = string.match(field, '^(%l+)\31(.*)$')
  if what == 'skills' then return is_live(of) and skills.has_skills(of, call('HGET', keys.meta, field)) end
  return what ~= 'lacks' or skills.has_members(of)
end

-- Schedules.

function belongs.crons(_, _, schedule)
  local s = schedules.state_of(schedule)
  if not s or call('HEXISTS', keys.crons, schedules.field('spec', schedule)) == 0 then return false end
  if s.status == 'active' then ensure(keys.ticks, s.look, schedule) end
  return true
end

function belongs.ticks(schedule)
  local s = schedules.state_of(schedule)
  return s and s.status == 'active'
end

function belongs.keepers(member)
  local schedule, worker = string.match(member, '^([^\31]*)\31(.*)$')
  return schedule and is_live(worker) and schedules.state_of(schedule)
end

-- Queues.

function belongs.heads(queue, score)
  return call('HEXISTS', keys.queues, queue) == 1 and tonumber(score) >= 0 and tonumber(score) < math.huge
end

-- A queue that may be leased from is in `heads`, not behind its first job.
function belongs.queues(queue, setting)
  local limit = tonumber(string.match(setting, '%d+$')) or math.huge
  local first = finish.first_in_line(queue)
  local score = call('ZSCORE', keys.heads, queue)
  local is_late = first and (not score or tonumber(score) > writes.head_score(first, queue))
  local running = tonumber(call('HGET', keys.counts, queue .. SEP .. 'running') or 0)
  if is_late and not string.find(setting, '^paused') and running < limit then fix(finish.reopen_queues, { queue }) end
  return true
end

-- mend_entry(member, value, id, h): one member or field of this part.
local function mend_entry(member, value, id, h)
  if part == 'jobs' then return mend_job(id, h) end
  if belongs[part](member, value, id, h) then return end
  fix(IS_HASH[part] and writes.delete or writes.remove, keys[part], member)
end

-- mend_page(cursor, count) → the next cursor.
local function mend_page(cursor, count)
  local next_cursor, entries = unpack(call(IS_HASH[part] and 'HSCAN' or 'ZSCAN', keys[part], cursor, 'COUNT', count))
  local ids = {}
  for i = 1, #entries, 2 do ids[#ids + 1] = part == 'jobs' and entries[i] or jobs.last_part(entries[i]) end
  local headers = jobs.read(ids)
  for i, id in ipairs(ids) do
    local member, value = entries[i * 2 - 1], entries[i * 2]
    if member ~= '' then mend_entry(member, value, id, headers[i]) end   -- '' is the sentinel
  end
  return next_cursor
end

-- raise_counters(): no sequence or fence that a header has is given out again.
local function raise_counters()
  for name, value in pairs(highest) do
    if value > tonumber(call('HGET', keys.meta, name) or 0) then fix(call, 'HSET', keys.meta, name, value) end
  end
  meta.seq = math.max(meta.seq or 0, highest.seq or 0)   -- what lanes show at the end comes after all of these
end

function M.run()
  part = request.args[1]
  n_mended = 0   -- how many things this call has mended
  highest = {}   -- seq and fence → the highest that any header has
  if part == 'heads' then writes.set_content(keys.meta, 'headed', '') end   -- it may be wrong
  local next_cursor = mend_page(request.args[2], request.args[3])
  if part == 'meta' then n_mended = n_mended + skills.compare_skills() end
  raise_counters()
  finish.write_all()
  return { next_cursor, n_mended }
end

return M
