-- The transition: a job goes from one state to another, and everything that follows from it. Every job comes by here,
-- so what this module calls of others is in locals. `h` is a header.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local batches = require 'batches'
local counters = require 'counters'
local events = require 'events'
local jobs = require 'jobs'
local lanes = require 'lanes'
local writes = require 'writes'
local call = request.call
local member_moved = batches.member_moved
local count_move, measure, add_event = counters.count_move, counters.measure, events.add
local index_entry, waits = jobs.index_entry, jobs.waits
local claim_turn, enter, leave = lanes.claim_turn, lanes.enter, lanes.leave
local add, set, put, remove, delete = writes.add, writes.set, writes.put, writes.remove, writes.delete
local add_later, remove_later, save = writes.add_later, writes.remove_later, writes.save
local wake_timer_at, digits = writes.wake_timer_at, writes.digits

local M = {}

local finished_ids

function M.reset()
  finished_ids = {}   -- ids of the jobs that finished in this call
  M.finished_ids = finished_ids
  M.seq = nil         -- the last place in line that was given out; nil if none was
end

-- move_to_tail(id, h, shown): a job that enters `ready` gets the last place in its line. If a lane shows it, it
-- arrived before.
local function move_to_tail(id, h, shown)
  M.seq = (M.seq or tonumber(meta.seq or 0)) + 1
  h[SEQ] = M.seq
  if not shown then h[ARRIVAL] = M.seq end
  jobs.ready_members[id] = nil
end

-- guard(id, h, waited, unfinished): a job has its unique key while it is unfinished, and an entry for its expiry while
-- it waits. The arguments say whether it did before this move.
local function guard(id, h, waited, unfinished)
  local waits_now = waits(h)
  if h[EXPIRES] > 0 and waited ~= waits_now then
    if waits_now then
      add(keys.timers, h[EXPIRES], 'expire' .. SEP .. id)
      wake_timer_at(keys.timers, h[EXPIRES])
    else
      remove(keys.timers, 'expire' .. SEP .. id)
    end
  end
  if h[UNIQUE] ~= '' and unfinished ~= (waits_now or h[STATE] == 'running') then
    if unfinished then delete(keys.unique, h[UNIQUE]) else set(keys.unique, h[UNIQUE], id) end
  end
end

-- death_member(id, h) → its member of `deaths`: the fingerprint of its error, when it died, id.
local function death_member(id, h) return h[DEATH] .. SEP .. string.format('%014.0f', h[SINCE]) .. SEP .. id end

-- add_death(id, h): it is dead. If no error had a fingerprint, the reason takes its place.
local function add_death(id, h)
  if h[DEATH] == '' then h[DEATH] = h[REASON] end
  add(keys.deaths, '0', death_member(id, h))
end

-- take_place(id, h): what was decided about its place in a lane before the move: where it waits, whether it takes the
-- turn of an ordered lane, whether a lane shows it at the tail of its line.
local function take_place(id, h)
  if h.home then h[HOME], h.home = h.home, nil end
  if h.turn then claim_turn(id, h) end
  if h.tail then move_to_tail(id, h, true) end
end

-- move(verb, id, h, state, note, packed) → the stored record. A new job comes from the state ''. `verb` and `note` are
-- for the event; without a verb there is none. `packed` is the record, if it need not be encoded. This is one function
-- because every job comes by here twice or more, and a call of a function takes as long as most of its steps.
local function move(verb, id, h, state, note, packed)
  local old_state, queue, has_lanes = h[STATE], h[QUEUE], #h[LANES] > 0
  local waited = old_state == 'ready' or old_state == 'scheduled' or old_state == 'held'
  local unfinished = waited or old_state == 'running'

  -- It leaves the index and the lanes of its old state.
  if old_state ~= '' then
    local key, _, member = index_entry(id, h)
    if has_lanes and waited then remove_later(key, member) else put(3, 'ZREM', key, member) end
    if has_lanes then leave(id, h, state, member) end
    if old_state == 'running' then
      if h[CANCELLING] == 1 then remove(keys.cancels, string.match(h[CLAIM], '^[^\31]*') .. SEP .. id) end
      measure('run', queue, request.now - h[STARTED], 1)
      h[CLAIM], h[CANCELLING] = '', 0
    elseif old_state == 'held' then
      measure('lane', queue, request.now - h[SINCE], 1)
    end
  end

  h[STATE], h[SINCE] = state, request.now
  if h[BATCH] ~= '' then member_moved(id, h, old_state, state) end
  if has_lanes then take_place(id, h) end

  -- It enters those of its new state.
  local key, score, member = index_entry(id, h)
  if has_lanes and (state == 'ready' or state == 'held') then
    add_later(key, '0', member)
  else
    put(5, 'ZADD', key, digits(score), member)
  end
  if has_lanes then enter(id, h, state, member) end
  if state == 'scheduled' then
    wake_timer_at(keys.scheduled, score)
  elseif state ~= 'ready' and state ~= 'running' and state ~= 'held' then
    finished_ids[#finished_ids + 1] = id
    if state == 'dead' then add_death(id, h) end
  end

  count_move(old_state, state, queue)
  if h[EXPIRES] > 0 or h[UNIQUE] ~= '' then guard(id, h, waited, unfinished) end
  if verb then add_event(verb, id, h, note) end
  return save(id, h, packed)
end

-- bury_unreadable(id, queue) → the header of the dead job: what is stored of it is no record. Its payload is what was
-- stored apart, or else all that is left.
function M.bury_unreadable(id, queue)
  local h = record.header_for(record.kind_of(SEP .. SEP .. SEP .. SEP))
  h.payload = call('HGET', keys.payloads, id) or call('HGET', keys.jobs, id) or ''
  if #h.payload < INLINE then delete(keys.payloads, id) end
  h[QUEUE], h[CREATED], h[SIZE], h[REASON] = queue or h[QUEUE], request.now, #h.payload, 'unreadable_header'
  move('bury', id, h, 'dead', 'unreadable_header')
  return h
end

M.move_to_tail = move_to_tail
M.death_member = death_member
M.move = move

return M
