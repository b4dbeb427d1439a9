-- reconcile: one page of one part is made to agree with the headers, which are the truth. A pass over `jobs` puts back
-- what an index lacks; a pass over each index takes out what does not belong there.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues nodes skills crons
--       ticks keepers workers results attempts logs retired calls lives
-- ARGV: part, cursor, how many at most
-- returns: the next cursor or 0, how many things were mended
-- event: those of the jobs that had to be buried

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

local part, cursor, mended, last, belongs, hashes, zsets

local function fix(act, ...)
  mended = mended + 1
  act(...)
end

local function follow(name, value)
  if value > (last[name] or 0) then last[name] = value end
end

-- due(key, score, member): it is there, with this score.
local function due(key, score, member)
  local kept = call('ZSCORE', key, member)
  if not kept or tonumber(kept) ~= tonumber(score) then fix(writes.add, key, score, member) end
end

-- mend_lanes(id, h): its lanes know of it. A lock that is its own says so itself.
local function mend_lanes(id, h)
  if recount_lanes.is_own(id, h) and (h.is_owner or h[STATE] == 'running') then return end
  if h.is_owner then fix(writes.put, 2, 'HSET', keys.jobs, id, READY_FRONT .. string.sub(call('HGET', keys.jobs, id), FRONT + 1)) end
  for i, spec in ipairs(h[LANES]) do
    if recount_lanes.holds(h, i) then due(keys.holders, 0, record.lane_name(spec) .. SEP .. id) end
  end
  mended = mended + recount_lanes.introduce(id, h)
end

-- mend(id, h): what this header asks for is there.
local function mend(id, h)
  follow('seq', h[SEQ])
  follow('fence', h[FENCE])
  call('HSETNX', keys.queues, h[QUEUE], '')
  local has_payload = h.payload or call('HEXISTS', keys.payloads, id) == 1
  if jobs.waits(h) and not has_payload then
    h[REASON] = 'payload_lost'
    return fix(transition.move, 'bury', id, h, 'dead', 'payload_lost')
  end
  if h[STATE] ~= 'done' and h[COMPACT] == 0 and h[SIZE] >= 0 and not has_payload then
    h[SIZE] = -1   -- it is known that nothing is there; should it have to run again, it is buried
    fix(writes.save, id, h)
  end
  due(jobs.index_entry(id, h))
  if h[STATE] == 'dead' and h[COMPACT] == 0 then due(keys.deaths, 0, transition.death_member(id, h)) end
  if #h[LANES] > 0 then mend_lanes(id, h) end
  if jobs.waits(h) and h[EXPIRES] > 0 then due(keys.timers, h[EXPIRES], 'expire' .. SEP .. id) end
  if h[CANCELLING] == 1 then due(keys.cancels, 0, string.match(h[CLAIM], '^[^\31]*') .. SEP .. id) end
  if h[UNIQUE] ~= '' and (jobs.waits(h) or h[STATE] == 'running') and not call('HGET', keys.unique, h[UNIQUE]) then
    fix(writes.set, keys.unique, h[UNIQUE], id)
  end
  local b = batches.of_member(h[BATCH], h[CREATED])
  for _, entry in ipairs(b and recount_batches.entries(b, id, h[STATE], h[FINISH]) or {}) do due(keys.roster, 0, entry) end
  if h[RESULT] == 1 and h[COMPACT] == 0 and call('HEXISTS', keys.results, id) == 0 then
    h[RESULT] = 2
    fix(writes.save, id, h)
  end
end

-- batch_mending.mend(b): it is where its parent looks for it, its numbers are right, what is to be done to it is in `chores`.
function recount_batches.mend(b)
  local parent = batches.of_member(b[B_PARENT], b[B_CREATED])
  local state = b[B_PHASE] == 'ended' and b[B_OUTCOME] or 'running'
  for _, entry in ipairs(parent and recount_batches.entries(parent, '{' .. b.id, state, b[B_FINISH]) or {}) do
    if not call('ZSCORE', keys.roster, entry) then fix(call, 'ZADD', keys.roster, 0, entry) end
  end
  for _, one in ipairs({ parent or b, b }) do
    if recount_batches.recount(one) then mended = mended + 1 end
  end
  if b[B_PHASE] == 'ended' and batches.pending(b) > 0 then fix(batches.reopen, b) end
  local paused = lanes.unpack_list(call('HGET', keys.limits, 'batch:' .. b.id))[2] == 1
  if paused ~= (b[B_CHORE] == 'cancel') then fix(batches.set_paused, b, not paused) end
  local chore = b[B_PHASE] == 'open' and 'abandon' or b[B_PHASE] == 'ended' and 'forget' or b[B_CHORE]
  local at = b[B_PHASE] == 'open' and b[B_ADDED] + b[B_ABANDON_AFTER] or b[B_PHASE] == 'ended' and b[B_ENDED] + b[B_KEEP] or request.now
  if chore ~= '' and not call('ZSCORE', keys.chores, chore .. SEP .. b.id) then fix(writes.add_later, keys.chores, at, chore .. SEP .. b.id) end
end

-- is_name(id) → may a job have this id?
local function is_name(id) return not string.find(id, '%c') end

-- bury_unreadable(id): a header cannot be understood; its payload, or all that is left, goes to the dead letter.
local function bury_unreadable(id)
  mended = mended + 1
  jobs.decoded[id], jobs.unreadable[id] = transition.bury_unreadable(id), nil
  call('HSETNX', keys.queues, jobs.decoded[id][QUEUE], '')
end

-- belongs[part](member, value, id, h) → may it stay?
local function indexed(key)
  return function(member, _, id, h)
    if not h then return false end
    local at, _, as = jobs.index_entry(id, h)
    return at == key and as == member
  end
end

local function worth_burying_in(key)
  local is_there = indexed(key)
  return function(member, value, id, h)
    if jobs.unreadable[id] then bury_unreadable(id) end
    return is_there(member, value, id, h)
  end
end

local function forgotten_in(key)   -- of a job that had ended only a payload is worth burying that was kept apart
  local is_there = indexed(key)
  return function(member, value, id, h)
    if jobs.unreadable[id] and call('HEXISTS', keys.payloads, id) == 0 then
      fix(writes.delete, keys.jobs, id)
      jobs.unreadable[id] = nil
    end
    return is_there(member, value, id, h)
  end
end

local function known(worker) return call('ZSCORE', keys.workers, worker) end

-- turn_page() → the next cursor. A function, for there may be no more than 200 locals at once.
local function turn_page()
  local key = hashes[part] or zsets[part]
  local page = call(hashes[part] and 'HSCAN' or 'ZSCAN', key, cursor, 'COUNT', request.args[3])
  local rows, ids = page[2], {}
  for i = 1, #rows, 2 do ids[#ids + 1] = part == 'jobs' and rows[i] or jobs.last_part(rows[i]) end
  local headers = jobs.read(ids)
  for i, id in ipairs(ids) do
    local member, value, h = rows[i * 2 - 1], rows[i * 2], headers[i]
    if member ~= '' then
      if part == 'jobs' then
        if h then mend(id, h) elseif is_name(id) then bury_unreadable(id) else fix(writes.delete, keys.jobs, id) end
      elseif not belongs[part](member, value, id, h) then
        fix(hashes[part] and writes.delete or writes.remove, key, member)
      end
    end
  end
  return page[1]
end

function M.run()
  part, cursor, mended = request.args[1], request.args[2], 0
  last = {}   -- the highest sequence and fence of any header
  belongs = {
    ready = worth_burying_in(keys.ready), held = worth_burying_in(keys.held), holders = function(member, _, id, h) return recount_lanes.is_holder(member, id, h) end,
    openings = function(member) return call('HEXISTS', keys.lanes, member) == 1 end,
    lanes = function(member)
      if recount_lanes.recounted(member) then mended = mended + 1 end
      return true
    end,
    scheduled = worth_burying_in(keys.scheduled), leases = worth_burying_in(keys.leases), dead = worth_burying_in(keys.dead),
    finished = forgotten_in(keys.finished), tombs = forgotten_in(keys.tombs),
    timers = function(_, _, _, h) return h and jobs.waits(h) and h[EXPIRES] > 0 end,
    cancels = function(_, _, _, h) return h and h[CANCELLING] == 1 end,
    payloads = function(_, _, _, h) return h and h[COMPACT] == 0 and h[STATE] ~= 'done' and not h.payload end,
    results = function(_, _, _, h) return h and h[COMPACT] == 0 and h[RESULT] == 1 end,
    attempts = function(_, _, _, h) return h and h[COMPACT] == 0 end,
    logs = function(_, _, _, h) return h and h[COMPACT] == 0 end,
    deaths = function(member, _, id, h)
      return h and h[STATE] == 'dead' and h[COMPACT] == 0 and transition.death_member(id, h) == member
    end,
    limits = function(member, value)
      local task, halted = string.match(member, '^task:(.*)$'), call('HGET', keys.meta, 'halted') or ''
      if task and lanes.unpack_list(value)[2] == 1 and not string.find(SEP .. halted .. SEP, SEP .. task .. SEP, 1, true) then
        fix(call, 'HSET', keys.meta, 'halted', task .. SEP .. halted)
      end
      return true
    end,
    unique = function(member, id)
      local h = jobs.read({ id })[1]
      return h and h[UNIQUE] == member and (jobs.waits(h) or h[STATE] == 'running')
    end,
    roster = function(member, _, _, h) return recount_batches.belongs(member, h) end,
    batches = function(member, _, id)
      local b = batches.get(id)
      if b and string.sub(member, 1, 5) == 'state' then recount_batches.mend(b) end
      return b
    end,
    chores = function(member, _, id)
      local what, b = string.match(member, '^[^\31]*'), batches.get(id)
      if what == 'forget' then return not b or b[B_PHASE] == 'ended' end
      return b and (b[B_CHORE] == what or (what == 'abandon' and b[B_PHASE] == 'open'))
    end,
    waiting = function(member, clients, _, h)
      local awaited = string.match(member, '^{%l+}(.*)')
      local b = awaited and batches.get(awaited)
      if b and b[B_PHASE] ~= 'ended' then return true end
      if h and (jobs.waits(h) or h[STATE] == 'running') then return true end
      for client in string.gmatch(clients, '[^\31]+') do messages.send('to:' .. client, 'end' .. SEP .. member) end
    end,
    workers = function(member)
      if call('ZSCORE', keys.retired, member) then return false end
      if call('HEXISTS', keys.nodes, member) == 0 then
        fix(writes.set, keys.nodes, member, cmsgpack.pack({ '{}', { '*' }, tonumber(call('ZSCORE', keys.lives, member) or 0), request.now }))
      end
      return true
    end,
    crons = function(_, _, schedule)
      local s = schedules.state_of(schedule)
      if not s or call('HEXISTS', keys.crons, schedules.field('spec', schedule)) == 0 then return false end
      if s.status == 'active' then due(keys.ticks, s.look, schedule) end
      return true
    end,
    ticks = function(member)
      local s = schedules.state_of(member)
      return s and s.status == 'active'
    end,
    keepers = function(member)
      local schedule, worker = string.match(member, '^([^\31]*)\31(.*)$')
      return schedule and known(worker) and schedules.state_of(schedule)
    end,
    idle = function(member) return known(jobs.last_part(member)) end,
    calls = function(member) return known(member) end,
    nodes = function(member, value)
      local life = known(member) and tonumber(lanes.unpack_list(value)[3]) or 0   -- 0: what it registered is lost
      if life > 0 then due(keys.lives, life, member) end
      if known(member) and skills.remember_skills(member) then mended = mended + 1 end
      return known(member)
    end,
    lives = function(member) return known(member) end,
    skills = function(member, _, worker) return known(worker) and skills.has_skills(worker, string.match(member, '^[^\31]*')) end,
    meta = function(member)
      local what, of = string.match(member, '^(%l+)\31(.*)$')
      if what == 'skills' then return known(of) and skills.has_skills(of, call('HGET', keys.meta, member)) end
      return what ~= 'lacks' or skills.has_members(of)
    end,
    heads = function(queue, score)
      return call('HEXISTS', keys.queues, queue) == 1 and tonumber(score) >= 0 and tonumber(score) < math.huge
    end,
    queues = function(queue, setting)
      local limit = tonumber(string.match(setting, '%d+$')) or math.huge
      local first = finish.first_in_line(queue)
      local score = call('ZSCORE', keys.heads, queue)
      local is_late = first and (not score or tonumber(score) > writes.head_score(first, queue))
      local running = tonumber(call('HGET', keys.counts, queue .. SEP .. 'running') or 0)
      if is_late and not string.find(setting, '^paused') and running < limit then fix(finish.reopen_queues, { queue }) end
      return true
    end,
  }
  hashes = { jobs = keys.jobs, payloads = keys.payloads, results = keys.results, attempts = keys.attempts, unique = keys.unique, waiting = keys.waiting,
                   calls = keys.calls, nodes = keys.nodes, meta = keys.meta, lanes = keys.lanes, crons = keys.crons, batches = keys.batches, logs = keys.logs, limits = keys.limits, queues = keys.queues }
  zsets = { ready = keys.ready, held = keys.held, holders = keys.holders, openings = keys.openings, scheduled = keys.scheduled, leases = keys.leases,
                  dead = keys.dead, finished = keys.finished, tombs = keys.tombs, timers = keys.timers, cancels = keys.cancels, workers = keys.workers,
                  lives = keys.lives, idle = keys.idle, ticks = keys.ticks, keepers = keys.keepers, deaths = keys.deaths,
                  roster = keys.roster, chores = keys.chores, skills = keys.skills, heads = keys.heads }
  if part == 'heads' then writes.set_content(keys.meta, 'headed', '') end   -- what it says may not be so
  local following = turn_page()
  if part == 'meta' then mended = mended + skills.compare_skills() end
  for name, value in pairs(last) do
    if value > tonumber(call('HGET', keys.meta, name) or 0) then fix(call, 'HSET', keys.meta, name, value) end
  end
  meta.seq = math.max(meta.seq or 0, last.seq or 0)   -- what lanes show in the end comes after all of these
  finish.write_all()
  return { following, mended }
end

return M
