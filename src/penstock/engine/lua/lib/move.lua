-- The transition: a job goes from one state to another, and everything that follows from it.
-- keys: meta timers unique cancels counts stats events waiting deaths

local deltas = {}        -- state → queue → change of its count; that of `ready` is not stored
local sums = {}          -- verb → queue → jobs, measure → queue → milliseconds, or measure and range → queue → jobs
local groups = {}        -- of the event: { verb, queue, task, attempt, note, ids, n }; also by these five
local group              -- the last one written to
local arrivals = {}      -- queue → how many became ready
local ceased = {}        -- queue → how many no longer run, which matters where it has a limit
local ended = {}         -- ids of jobs that finished
local sequence           -- the last place in line that was given out

-- tally(sheet, name, queue, change): names are few and queues may be many, so there is a row for each name.
local function tally(sheet, name, queue, change)
  local row = sheet[name]
  if not row then
    row = {}
    sheet[name] = row
  end
  row[queue] = (row[queue] or 0) + change
end

-- measure(what, queue, ms, n): so many jobs took so long: how long in all, and how many fell into which range. Most of a page took as
-- long as the one before, so they are added up first. add_measured(): to `sums`.
local measured = { n = 0 }
local function range_of(ms) return RANGE_OF end
local function add_measured()
  local what, queue, ms, n = measured.what, measured.queue, measured.ms, measured.n
  if n == 0 then return end
  measured.n = 0
  if ms > 0 then tally(sums, what, queue, ms * n) end   -- the clock may have been set back
  tally(sums, what .. range_of(ms), queue, n)
end
local function measure(what, queue, ms, n)
  if measured.ms == ms and measured.queue == queue and measured.what == what then
    measured.n = measured.n + n
    return
  end
  add_measured()
  measured.what, measured.queue, measured.ms, measured.n = what, queue, ms, n
end

-- digits(n) → a time as text, made once: the server would make it anew for each job.
local known_digits = {}
local function digits(n)
  local text = known_digits[n]
  if not text then
    text = string.format('%.0f', n)
    known_digits[n] = text
  end
  return text
end

-- group_of(verb, queue, task, attempt, text) → the lines of this call's event that say so; ids follow in [6], their number in [7].
local function group_of(verb, queue, task, attempt, text)
  local name = verb .. SEP .. queue .. SEP .. task .. SEP .. digits(attempt) .. SEP .. text
  local one = groups[name]
  if not one then
    one = { verb, queue, task, attempt, text, {}, 0 }
    groups[name], groups[#groups + 1] = one, one
  end
  return one
end

-- note(verb, id, h, text): one more line of this call's event.
local function note(verb, id, h, text)
  local queue, task, state, attempt, one = h[QUEUE], h[TASK], h[STATE], h[FAILURES] + h[CRASHES], group
  if state == 'running' or state == 'done' or (state == 'cancelled' and h[STARTS] > attempt + h[RELEASES]) then attempt = attempt + 1 end
  text = text or ''
  if not one or one[1] ~= verb or one[2] ~= queue or one[3] ~= task or one[4] ~= attempt or one[5] ~= text then
    one = group_of(verb, queue, task, attempt, text)
    group = one
  end
  local n = one[7] + 1
  one[6][n], one[7] = id, n
end

-- tail(id, h, shown): gives a job that enters `ready` the last place in its line. One that a lane shows arrived before.
local function tail(id, h, shown)
  sequence = (sequence or tonumber(seq_before or 0)) + 1
  h[SEQ] = sequence
  if not shown then h[ARRIVAL] = sequence end
  lines[id] = nil
end

-- guard(id, h, waited, unfinished): what a job holds while it is unfinished or waits: its unique key, its expiry.
local function guard(id, h, waited, unfinished)
  local yet = waits(h)
  if h[EXPIRES] > 0 and waited ~= yet then
    if yet then
      add(timers, h[EXPIRES], 'expire' .. SEP .. id)
      alarm(timers, h[EXPIRES])
    else
      drop(timers, 'expire' .. SEP .. id)
    end
  end
  if h[UNIQUE] ~= '' and unfinished ~= (yet or h[STATE] == 'running') then
    if unfinished then erase(unique, h[UNIQUE]) else set(unique, h[UNIQUE], id) end
  end
end

-- obituary(id, h) → its member of `deaths`: the fingerprint of its error, when it died, id.
local function obituary(id, h) return h[DEATH] .. SEP .. string.format('%014.0f', h[SINCE]) .. SEP .. id end

-- mourn(id, h): it is dead; where no error told of a fingerprint, its reason is one.
local function mourn(id, h)
  if h[DEATH] == '' then h[DEATH] = h[REASON] end
  add(deaths, '0', obituary(id, h))
end

-- move(verb, id, h, state, text, packed) → the stored header. A new job comes from the state ''. One function, written
-- out: it is what every script spends its time in, and calls of small functions would take half of that.
local function move(verb, id, h, state, text, packed)
  local old, queue = h[STATE], h[QUEUE]
  local laned = #h[LANES] > 0
  if laned then need_lanes() end
  local waited = old == 'ready' or old == 'scheduled' or old == 'held'
  local unfinished = waited or old == 'running'
  if old ~= '' then
    local key, _, member = place(id, h)
    if laned and waited then withdraw(key, member) else put(3, 'ZREM', key, member) end
    if laned then leave_lanes(id, h, state, member) end
    tally(deltas, old, queue, -1)
    if old == 'running' then
      ceased[queue] = (ceased[queue] or 0) + 1
      if h[CANCELLING] == 1 then drop(cancels, string.match(h[CLAIM], '^[^\31]*') .. SEP .. id) end
      measure('run', queue, now - h[STARTED], 1)
      h[CLAIM], h[CANCELLING] = '', 0
    elseif old == 'held' then
      measure('lane', queue, now - h[SINCE], 1)
    end
  end
  h[STATE], h[SINCE] = state, now
  if h[BATCH] ~= '' then
    need_batches()
    batch_kit.moved(id, h, old, state)
  end
  if h.home then h[HOME], h.home = h.home, nil end   -- the lane that it will wait under
  if h.turn then claim_turn(id, h) end
  if h.tail then tail(id, h, true) end
  local key, score, member = place(id, h)
  if laned and (state == 'ready' or state == 'held') then
    enter(key, '0', member)
  else
    put(5, 'ZADD', key, digits(score), member)
  end
  if laned then enter_lanes(id, h, state, member) end
  tally(deltas, state, queue, 1)
  if state == 'ready' then
    arrivals[queue] = (arrivals[queue] or 0) + 1
  elseif state == 'scheduled' then
    alarm(scheduled, score)
  elseif state ~= 'running' and state ~= 'held' then
    ended[#ended + 1] = id
    if state == 'dead' then mourn(id, h) end
  end
  if h[EXPIRES] > 0 or h[UNIQUE] ~= '' then guard(id, h, waited, unfinished) end
  if verb then note(verb, id, h, text) end
  return save(id, h, packed)
end

-- quarantine(id, queue): what is stored is no record. The dead letter has its payload, if that was kept apart, or else all that is left.
local function quarantine(id, queue)
  local h = header_for(kind_of(SEP .. SEP .. SEP .. SEP))
  h.payload = call('HGET', payloads, id) or call('HGET', jobs, id) or ''
  if #h.payload < INLINE then erase(payloads, id) end
  h[QUEUE], h[CREATED], h[SIZE], h[REASON] = queue or h[QUEUE], now, #h.payload, 'unreadable_header'
  move('bury', id, h, 'dead', 'unreadable_header')
  return h
end
