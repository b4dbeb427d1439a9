-- The transition: a job goes from one state to another, and everything that follows from it. Every job comes by here, so what it calls
-- of other modules is in locals.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local batches = require 'batches'
local counters = require 'counters'
local jobs = require 'jobs'
local lanes = require 'lanes'
local writes = require 'writes'
local call = request.call
local header_for, kind_of = record.header_for, record.kind_of
local member_moved = batches.member_moved
local count_move, measure = counters.count_move, counters.measure
local index_entry, waits = jobs.index_entry, jobs.waits
local claim_turn, enter, leave = lanes.claim_turn, lanes.enter, lanes.leave
local add, set, put, remove, delete = writes.add, writes.set, writes.put, writes.remove, writes.delete
local add_later, remove_later, save, wake_timer_at = writes.add_later, writes.remove_later, writes.save, writes.wake_timer_at

local M = {}

local known_digits, event_groups, finished_ids

function M.reset()
  event_groups = {}   -- of the event: { verb, queue, task, attempt, note, ids, n }; also by these five
  M.last_group = nil   -- the last one written to
  finished_ids = {}   -- ids of jobs that finished
  M.seq = nil   -- the last place in line that was given out
  known_digits = {}
  M.event_groups, M.finished_ids = event_groups, finished_ids
end

-- digits(n) → a time as text, made once: the server would make it anew for each job.
local function digits(n)
  local text = known_digits[n]
  if not text then
    text = string.format('%.0f', n)
    known_digits[n] = text
  end
  return text
end

-- event_group(verb, queue, task, attempt, text) → the lines of this call's event that say so; ids follow in [6], their number in [7].
local function event_group(verb, queue, task, attempt, text)
  local name = verb .. SEP .. queue .. SEP .. task .. SEP .. digits(attempt) .. SEP .. text
  local one = event_groups[name]
  if not one then
    one = { verb, queue, task, attempt, text, {}, 0 }
    event_groups[name], event_groups[#event_groups + 1] = one, one
  end
  return one
end

-- add_event(verb, id, h, text): one more line of this call's event.
local function add_event(verb, id, h, text)
  local queue, task, state, attempt, one = h[QUEUE], h[TASK], h[STATE], h[FAILURES] + h[CRASHES], M.last_group
  if state == 'running' or state == 'done' or (state == 'cancelled' and h[STARTS] > attempt + h[RELEASES]) then attempt = attempt + 1 end
  text = text or ''
  if not one or one[1] ~= verb or one[2] ~= queue or one[3] ~= task or one[4] ~= attempt or one[5] ~= text then
    one = event_group(verb, queue, task, attempt, text)
    M.last_group = one
  end
  local n = one[7] + 1
  one[6][n], one[7] = id, n
end

-- move_to_tail(id, h, shown): gives a job that enters `ready` the last place in its line. One that a lane shows arrived before.
local function move_to_tail(id, h, shown)
  M.seq = (M.seq or tonumber(meta.seq or 0)) + 1
  h[SEQ] = M.seq
  if not shown then h[ARRIVAL] = M.seq end
  jobs.ready_members[id] = nil
end

-- guard(id, h, waited, unfinished): what a job holds while it is unfinished or waits: its unique key, its expiry.
local function guard(id, h, waited, unfinished)
  local yet = waits(h)
  if h[EXPIRES] > 0 and waited ~= yet then
    if yet then
      add(keys.timers, h[EXPIRES], 'expire' .. SEP .. id)
      wake_timer_at(keys.timers, h[EXPIRES])
    else
      remove(keys.timers, 'expire' .. SEP .. id)
    end
  end
  if h[UNIQUE] ~= '' and unfinished ~= (yet or h[STATE] == 'running') then
    if unfinished then delete(keys.unique, h[UNIQUE]) else set(keys.unique, h[UNIQUE], id) end
  end
end

-- death_member(id, h) → its member of `deaths`: the fingerprint of its error, when it died, id.
local function death_member(id, h) return h[DEATH] .. SEP .. string.format('%014.0f', h[SINCE]) .. SEP .. id end

-- mourn(id, h): it is dead; where no error told of a fingerprint, its reason is one.
local function mourn(id, h)
  if h[DEATH] == '' then h[DEATH] = h[REASON] end
  add(keys.deaths, '0', death_member(id, h))
end

-- move(verb, id, h, state, text, packed) → the stored header. A new job comes from the state ''. One function, written
-- out: it is what every script spends its time in, and calls of small functions would take half of that.
local function move(verb, id, h, state, text, packed)
  local old, queue = h[STATE], h[QUEUE]
  local laned = #h[LANES] > 0
  local waited = old == 'ready' or old == 'scheduled' or old == 'held'
  local unfinished = waited or old == 'running'
  if old ~= '' then
    local key, _, member = index_entry(id, h)
    if laned and waited then remove_later(key, member) else put(3, 'ZREM', key, member) end
    if laned then leave(id, h, state, member) end
    if old == 'running' then
      if h[CANCELLING] == 1 then remove(keys.cancels, string.match(h[CLAIM], '^[^\31]*') .. SEP .. id) end
      measure('run', queue, request.now - h[STARTED], 1)
      h[CLAIM], h[CANCELLING] = '', 0
    elseif old == 'held' then
      measure('lane', queue, request.now - h[SINCE], 1)
    end
  end
  h[STATE], h[SINCE] = state, request.now
  if h[BATCH] ~= '' then
    member_moved(id, h, old, state)
  end
  if laned then
    if h.home then h[HOME], h.home = h.home, nil end   -- the lane that it will wait under
    if h.turn then claim_turn(id, h) end
    if h.tail then move_to_tail(id, h, true) end
  end
  local key, score, member = index_entry(id, h)
  if laned and (state == 'ready' or state == 'held') then
    add_later(key, '0', member)
  else
    put(5, 'ZADD', key, digits(score), member)
  end
  if laned then enter(id, h, state, member) end
  count_move(old, state, queue)
  if state == 'scheduled' then
    wake_timer_at(keys.scheduled, score)
  elseif state ~= 'ready' and state ~= 'running' and state ~= 'held' then
    finished_ids[#finished_ids + 1] = id
    if state == 'dead' then mourn(id, h) end
  end
  if h[EXPIRES] > 0 or h[UNIQUE] ~= '' then guard(id, h, waited, unfinished) end
  if verb then add_event(verb, id, h, text) end
  return save(id, h, packed)
end

-- bury_unreadable(id, queue): what is stored is no record. The dead letter has its payload, if that was kept apart, or else all that is left.
function M.bury_unreadable(id, queue)
  local h = header_for(kind_of(SEP .. SEP .. SEP .. SEP))
  h.payload = call('HGET', keys.payloads, id) or call('HGET', keys.jobs, id) or ''
  if #h.payload < INLINE then delete(keys.payloads, id) end
  h[QUEUE], h[CREATED], h[SIZE], h[REASON] = queue or h[QUEUE], request.now, #h.payload, 'unreadable_header'
  move('bury', id, h, 'dead', 'unreadable_header')
  return h
end

M.digits = digits
M.event_group = event_group
M.add_event = add_event
M.move_to_tail = move_to_tail
M.death_member = death_member
M.move = move

return M
