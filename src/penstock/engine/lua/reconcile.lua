-- reconcile: one page of one part is made to agree with the headers, which are the truth. A pass over `jobs` puts back
-- what an index lacks; a pass over each index takes out what does not belong there.
-- flags: allow-oom
-- keys: payloads results attempts logs waiting queues workers retired idle calls nodes lives
-- include: record mail header write waiters lanes owners batches move line enter finish create ends recount_lanes recount_batches skills cron
-- args: part, cursor, how many at most
-- returns: the next cursor or 0, how many things were mended
-- event: those of the jobs that had to be buried
need_lanes()
need_line()
need_batches()
local part, cursor, mended = ARGV[1], ARGV[2], 0

local function fix(act, ...)
  mended = mended + 1
  act(...)
end

local last = {}   -- the highest sequence and fence of any header
local function follow(name, value)
  if value > (last[name] or 0) then last[name] = value end
end

-- due(key, score, member): it is there, with this score.
local function due(key, score, member)
  local kept = call('ZSCORE', key, member)
  if not kept or tonumber(kept) ~= tonumber(score) then fix(add, key, score, member) end
end

-- mend_lanes(id, h): its lanes know of it. A lock that is its own says so itself.
local function mend_lanes(id, h)
  if is_own(id, h) and (h.is_owner or h[STATE] == 'running') then return end
  if h.is_owner then fix(put, 2, 'HSET', jobs, id, READY_FRONT .. string.sub(call('HGET', jobs, id), FRONT + 1)) end
  for i, spec in ipairs(h[LANES]) do
    if holds(h, i) then due(holders, 0, lane_name(spec) .. SEP .. id) end
  end
  mended = mended + introduce(id, h)
end

-- mend(id, h): what this header asks for is there.
local function mend(id, h)
  follow('seq', h[SEQ])
  follow('fence', h[FENCE])
  call('HSETNX', queues, h[QUEUE], '')
  local has_payload = h.payload or call('HEXISTS', payloads, id) == 1
  if waits(h) and not has_payload then
    h[REASON] = 'payload_lost'
    return fix(move, 'bury', id, h, 'dead', 'payload_lost')
  end
  if h[STATE] ~= 'done' and h[COMPACT] == 0 and h[SIZE] >= 0 and not has_payload then
    h[SIZE] = -1   -- it is known that nothing is there; should it have to run again, it is buried
    fix(save, id, h)
  end
  due(place(id, h))
  if h[STATE] == 'dead' and h[COMPACT] == 0 then due(deaths, 0, obituary(id, h)) end
  if #h[LANES] > 0 then mend_lanes(id, h) end
  if waits(h) and h[EXPIRES] > 0 then due(timers, h[EXPIRES], 'expire' .. SEP .. id) end
  if h[CANCELLING] == 1 then due(cancels, 0, string.match(h[CLAIM], '^[^\31]*') .. SEP .. id) end
  if h[UNIQUE] ~= '' and (waits(h) or h[STATE] == 'running') and not call('HGET', unique, h[UNIQUE]) then
    fix(set, unique, h[UNIQUE], id)
  end
  local b = batch_kit.of(h[BATCH], h[CREATED])
  for _, entry in ipairs(b and batch_mending.entries(b, id, h[STATE], h[FINISH]) or {}) do due(roster, 0, entry) end
  if h[RESULT] == 1 and h[COMPACT] == 0 and call('HEXISTS', results, id) == 0 then
    h[RESULT] = 2
    fix(save, id, h)
  end
end

-- batch_mending.mend(b): it is where its parent looks for it, its numbers are right, what is to be done to it is in `chores`.
function batch_mending.mend(b)
  local parent = batch_kit.of(b[B_PARENT], b[B_CREATED])
  local state = b[B_PHASE] == 'ended' and b[B_OUTCOME] or 'running'
  for _, entry in ipairs(parent and batch_mending.entries(parent, '{' .. b.id, state, b[B_FINISH]) or {}) do
    if not call('ZSCORE', roster, entry) then fix(call, 'ZADD', roster, 0, entry) end
  end
  for _, one in ipairs({ parent or b, b }) do
    if batch_mending.recount(one) then mended = mended + 1 end
  end
  if b[B_PHASE] == 'ended' and batch_kit.pending(b) > 0 then fix(batch_kit.reopen, b) end
  local paused = unpacked(call('HGET', limits, 'batch:' .. b.id))[2] == 1
  if paused ~= (b[B_CHORE] == 'cancel') then fix(batch_kit.close, b, not paused) end
  local chore = b[B_PHASE] == 'open' and 'abandon' or b[B_PHASE] == 'ended' and 'forget' or b[B_CHORE]
  local at = b[B_PHASE] == 'open' and b[B_ADDED] + b[B_ABANDON_AFTER] or b[B_PHASE] == 'ended' and b[B_ENDED] + b[B_KEEP] or now
  if chore ~= '' and not call('ZSCORE', chores, chore .. SEP .. b.id) then fix(enter, chores, at, chore .. SEP .. b.id) end
end

-- is_name(id) → may a job have this id?
local function is_name(id) return not string.find(id, '%c') end

-- bury_unreadable(id): a header cannot be understood; its payload, or all that is left, goes to the dead letter.
local function bury_unreadable(id)
  mended = mended + 1
  cache[id], spoilt[id] = quarantine(id), nil
  call('HSETNX', queues, cache[id][QUEUE], '')
end

-- belongs[part](member, value, id, h) → may it stay?
local function indexed(key)
  return function(member, _, id, h)
    if not h then return false end
    local at, _, as = place(id, h)
    return at == key and as == member
  end
end
local function worth_burying_in(key)
  local is_there = indexed(key)
  return function(member, value, id, h)
    if spoilt[id] then bury_unreadable(id) end
    return is_there(member, value, id, h)
  end
end
local function forgotten_in(key)   -- of a job that had ended only a payload is worth burying that was kept apart
  local is_there = indexed(key)
  return function(member, value, id, h)
    if spoilt[id] and call('HEXISTS', payloads, id) == 0 then
      fix(erase, jobs, id)
      spoilt[id] = nil
    end
    return is_there(member, value, id, h)
  end
end
local function known(worker) return call('ZSCORE', workers, worker) end
local belongs = {
  ready = worth_burying_in(ready), held = worth_burying_in(held), holders = function(member, _, id, h) return is_holder(member, id, h) end,
  openings = function(member) return call('HEXISTS', lanes, member) == 1 end,
  lanes = function(member)
    if recounted(member) then mended = mended + 1 end
    return true
  end,
  scheduled = worth_burying_in(scheduled), leases = worth_burying_in(leases), dead = worth_burying_in(dead),
  finished = forgotten_in(finished), tombs = forgotten_in(tombs),
  timers = function(_, _, _, h) return h and waits(h) and h[EXPIRES] > 0 end,
  cancels = function(_, _, _, h) return h and h[CANCELLING] == 1 end,
  payloads = function(_, _, _, h) return h and h[COMPACT] == 0 and h[STATE] ~= 'done' and not h.payload end,
  results = function(_, _, _, h) return h and h[COMPACT] == 0 and h[RESULT] == 1 end,
  attempts = function(_, _, _, h) return h and h[COMPACT] == 0 end,
  logs = function(_, _, _, h) return h and h[COMPACT] == 0 end,
  deaths = function(member, _, id, h)
    return h and h[STATE] == 'dead' and h[COMPACT] == 0 and obituary(id, h) == member
  end,
  limits = function(member, value)
    local task, halted = string.match(member, '^task:(.*)$'), call('HGET', meta, 'halted') or ''
    if task and unpacked(value)[2] == 1 and not string.find(SEP .. halted .. SEP, SEP .. task .. SEP, 1, true) then
      fix(call, 'HSET', meta, 'halted', task .. SEP .. halted)
    end
    return true
  end,
  unique = function(member, id)
    local h = read({ id })[1]
    return h and h[UNIQUE] == member and (waits(h) or h[STATE] == 'running')
  end,
  roster = function(member, _, _, h) return batch_mending.belongs(member, h) end,
  batches = function(member, _, id)
    local b = batch_kit.one(id)
    if b and string.sub(member, 1, 5) == 'state' then batch_mending.mend(b) end
    return b
  end,
  chores = function(member, _, id)
    local what, b = string.match(member, '^[^\31]*'), batch_kit.one(id)
    if what == 'forget' then return not b or b[B_PHASE] == 'ended' end
    return b and (b[B_CHORE] == what or (what == 'abandon' and b[B_PHASE] == 'open'))
  end,
  waiting = function(member, clients, _, h)
    local awaited = string.match(member, '^{%l+}(.*)')
    local b = awaited and batch_kit.one(awaited)
    if b and b[B_PHASE] ~= 'ended' then return true end
    if h and (waits(h) or h[STATE] == 'running') then return true end
    for client in string.gmatch(clients, '[^\31]+') do mail('to:' .. client, 'end' .. SEP .. member) end
  end,
  workers = function(member)
    if call('ZSCORE', retired, member) then return false end
    if call('HEXISTS', nodes, member) == 0 then
      fix(set, nodes, member, cmsgpack.pack({ '{}', { '*' }, tonumber(call('ZSCORE', lives, member) or 0), now }))
    end
    return true
  end,
  crons = function(_, _, schedule)
    local s = standing(schedule)
    if not s or call('HEXISTS', crons, field('spec', schedule)) == 0 then return false end
    if s.status == 'active' then due(ticks, s.look, schedule) end
    return true
  end,
  ticks = function(member)
    local s = standing(member)
    return s and s.status == 'active'
  end,
  keepers = function(member)
    local schedule, worker = string.match(member, '^([^\31]*)\31(.*)$')
    return schedule and known(worker) and standing(schedule)
  end,
  idle = function(member) return known(last_part(member)) end,
  calls = function(member) return known(member) end,
  nodes = function(member, value)
    local life = known(member) and tonumber(unpacked(value)[3]) or 0   -- 0: what it registered is lost
    if life > 0 then due(lives, life, member) end
    if known(member) and remember_skills(member) then mended = mended + 1 end
    return known(member)
  end,
  lives = function(member) return known(member) end,
  skills = function(member, _, worker) return known(worker) and has_skills(worker, string.match(member, '^[^\31]*')) end,
  meta = function(member)
    local what, of = string.match(member, '^(%l+)\31(.*)$')
    if what == 'skills' then return known(of) and has_skills(of, call('HGET', meta, member)) end
    return what ~= 'lacks' or has_members(of)
  end,
  heads = function(queue, score)
    return call('HEXISTS', queues, queue) == 1 and tonumber(score) >= 0 and tonumber(score) < math.huge
  end,
  queues = function(queue, setting)
    local limit = tonumber(string.match(setting, '%d+$')) or math.huge
    local first = first_in_line(queue)
    local score = call('ZSCORE', heads, queue)
    local is_late = first and (not score or tonumber(score) > score_of(first, queue))
    local running = tonumber(call('HGET', counts, queue .. SEP .. 'running') or 0)
    if is_late and not string.find(setting, '^paused') and running < limit then fix(reopen, { queue }) end
    return true
  end,
}
local hashes = { jobs = jobs, payloads = payloads, results = results, attempts = attempts, unique = unique, waiting = waiting,
                 calls = calls, nodes = nodes, meta = meta, lanes = lanes, crons = crons, batches = batches, logs = logs, limits = limits, queues = queues }
local zsets = { ready = ready, held = held, holders = holders, openings = openings, scheduled = scheduled, leases = leases,
                dead = dead, finished = finished, tombs = tombs, timers = timers, cancels = cancels, workers = workers,
                lives = lives, idle = idle, ticks = ticks, keepers = keepers, deaths = deaths,
                roster = roster, chores = chores, skills = skills, heads = heads }

-- turn_page() → the next cursor. A function, for there may be no more than 200 locals at once.
local function turn_page()
  local key = hashes[part] or zsets[part]
  local page = call(hashes[part] and 'HSCAN' or 'ZSCAN', key, cursor, 'COUNT', ARGV[3])
  local rows, ids = page[2], {}
  for i = 1, #rows, 2 do ids[#ids + 1] = part == 'jobs' and rows[i] or last_part(rows[i]) end
  local headers = read(ids)
  for i, id in ipairs(ids) do
    local member, value, h = rows[i * 2 - 1], rows[i * 2], headers[i]
    if member ~= '' then
      if part == 'jobs' then
        if h then mend(id, h) elseif is_name(id) then bury_unreadable(id) else fix(erase, jobs, id) end
      elseif not belongs[part](member, value, id, h) then
        fix(hashes[part] and erase or drop, key, member)
      end
    end
  end
  return page[1]
end

if part == 'heads' then store(meta, 'headed', '') end   -- what it says may not be so
local following = turn_page()
if part == 'meta' then mended = mended + compare_skills() end
for name, value in pairs(last) do
  if value > tonumber(call('HGET', meta, name) or 0) then fix(call, 'HSET', meta, name, value) end
end
seq_before = math.max(seq_before or 0, last.seq or 0)   -- what lanes show in the end comes after all of these
finish()
return { following, mended }
