-- Batches: members are counted as they come, finish and run again. `roster` has an entry for each, lexical:
-- batch SEP u SEP name while it is unfinished; batch SEP f SEP finish number SEP name when it is finished; and of those
-- batch SEP x SEP name if it is dead, batch SEP c SEP name if it was cancelled. The name of a batch inside is { and its id,
-- which no job can have. Every number of a batch follows from how many entries there are.
-- keys: batches roster chores

local touched = {}    -- ids of batches whose numbers changed, in this order; by id, the batch
local known_batches = {}   -- id → batch, as read and as it will be stored; false if there is none
local batch_kit = {}  -- what deals with them; most calls never need it
local endings = {}    -- look_at: sees to those that were touched, and stores them (lib/ends.lua)

-- on demand: need_batches
need_lanes()

function batch_kit.member(batch, kind, name) return batch .. SEP .. kind .. SEP .. name end
local decimals_of = {}   -- n → its two digits, as bytes_of
function decimals_of.new(n)
  decimals_of[n] = string.format('%02d', n)
  return decimals_of[n]
end
function batch_kit.numbered(batch, number, name)
  return batch .. SEP .. 'f' .. SEP .. string.format('%016d', number) .. SEP .. name
end

local function sound(b)
  local _ = b[B_CREATED] + b[B_ADDED] + b[B_ENDED] + b[B_TOTAL] + b[B_DONE] + b[B_DEAD] + b[B_CANCELLED] + b[B_FINISHES]
    + b[B_GENERATION] + b[B_FAILED] + b[B_FINISH] + b[B_PRIORITY] + b[B_LIMIT] + b[B_DEPTH] + b[B_ABANDON_AFTER] + b[B_KEEP]
    + #b[B_PHASE] + #b[B_NAME] + #b[B_PARENT] + #b[B_REASON] + #b[B_OUTCOME] + #b[B_CHORE] + #b[B_CURSOR] + #b[B_RETRIED]
end

-- one(id) → the batch; nothing if there is none, or it cannot be understood.
function batch_kit.one(id)
  if known_batches[id] == nil then
    local b = unpacked(call('HGET', batches, 'state' .. SEP .. id))
    local fine = pcall(sound, b)
    if fine then b.id = id end
    known_batches[id] = fine and b or false
  end
  return known_batches[id] or nil
end

-- of(id, created) → the batch that a job, or a batch, which was made then is in. Not one that got the id of a forgotten one.
function batch_kit.of(id, created)
  local b = id ~= '' and batch_kit.one(id)
  return b and b[B_CREATED] <= created and b or nil
end

-- since(id) → when a member that comes now is made: not before its batch, whatever the clock says.
function batch_kit.since(id) return math.max(now, batch_kit.one(id)[B_CREATED]) end

function batch_kit.know(b) known_batches[b.id] = b end

function batch_kit.touch(b)
  if not touched[b.id] then
    touched[b.id] = b
    touched[#touched + 1] = b.id
  end
end

-- pending(b) → how many members are unfinished.
function batch_kit.pending(b) return b[B_TOTAL] - b[B_DONE] - b[B_DEAD] - b[B_CANCELLED] end

-- refusal(b) → why it takes no members, or nothing.
function batch_kit.refusal(b)
  if not b then return 'unknown' end
  if b[B_PHASE] == 'open' then return nil end
  return b[B_PHASE] == 'ended' and 'ended' or b[B_REASON] ~= '' and 'cancelled' or 'sealed'
end

-- adopt(h): what a batch asks of a job that is to be its member: its priority, and its lane before all others.
function batch_kit.adopt(h)
  local b = batch_kit.one(h[BATCH])
  if not b then return end
  if b[B_PRIORITY] >= 0 then h[PRIORITY] = b[B_PRIORITY] end
  local own = 'batch:' .. b.id .. SEP .. (b[B_LIMIT] >= 0 and b[B_LIMIT] or '') .. SEP .. SEP .. SEP .. SEP .. '1'
  h[LANES] = { own, unpack(h[LANES]) }
end

local slot_of = { done = B_DONE, dead = B_DEAD, cancelled = B_CANCELLED }
local letter_of = { dead = 'x', cancelled = 'c' }

-- join(b, name): one member more.
function batch_kit.join(b, name)
  b[B_TOTAL], b[B_ADDED] = b[B_TOTAL] + 1, now
  add(roster, '0', batch_kit.member(b.id, 'u', name))
  batch_kit.touch(b)
end

-- leave(b, name, outcome) → its finish number. The entry is written with the contents, before the header: a member
-- whose header says that it is finished then has it, whatever happens in between.
function batch_kit.leave(b, name, outcome) return batch_kit.leave_all(b, { name }, 1, 1, outcome) end

-- leave_all(b, names, from, to, outcome) → the finish number of the last of these. From one number to the next only the end
-- differs.
function batch_kit.leave_all(b, names, from, to, outcome)
  local number, slot, letter = b[B_FINISHES], slot_of[outcome], letter_of[outcome]
  local numbers, exits = pile(1, 'ZADD', roster), pile(3, 'ZREM', roster)
  local unfinished, a, c, sub, start = batch_kit.member(b.id, 'u', ''), numbers.n, exits.n, string.sub, nil
  for i = from, to do
    local name = names[i]
    number = number + 1
    local low = number % 100
    if low == 0 or not start then start = sub(batch_kit.numbered(b.id, number, ''), 1, -4) end
    a = a + 2
    numbers[a - 1] = '0'
    numbers[a] = start .. (decimals_of[low] or decimals_of.new(low)) .. SEP .. name
    if letter then numbers[a + 1], numbers[a + 2], a = '0', batch_kit.member(b.id, letter, name), a + 2 end
    c = c + 1
    exits[c] = unfinished .. name
  end
  numbers.n, exits.n, b[B_FINISHES], b[slot] = a, c, number, b[slot] + to - from + 1
  if outcome == 'dead' then b.died = true end
  b.news = true
  batch_kit.touch(b)
  return number
end

-- back(b, name, outcome, number): a member that had finished so runs again; if the batch had ended, it goes on.
function batch_kit.back(b, name, outcome, number)
  if b[B_PHASE] == 'ended' then batch_kit.reopen(b) end
  local slot = slot_of[outcome]
  b[slot] = b[slot] - 1
  drop(roster, batch_kit.numbered(b.id, number, name))
  if letter_of[outcome] then drop(roster, batch_kit.member(b.id, letter_of[outcome], name)) end
  add(roster, '0', batch_kit.member(b.id, 'u', name))
  batch_kit.touch(b)
end

-- reopen(b): it has not ended, after all; its next end is another one. So the batch that it is in goes on, too.
function batch_kit.reopen(b)
  local parent = batch_kit.of(b[B_PARENT], b[B_CREATED])
  if parent and b[B_OUTCOME] ~= '' then batch_kit.back(parent, '{' .. b.id, b[B_OUTCOME], b[B_FINISH]) end
  b[B_PHASE], b[B_GENERATION], b[B_ENDED], b[B_FAILED] = 'sealed', b[B_GENERATION] + 1, 0, 0
  b[B_REASON], b[B_OUTCOME], b[B_FINISH] = '', '', 0
  withdraw(chores, 'forget' .. SEP .. b.id)
  batch_kit.touch(b)
end

-- moved(id, h, old, state): a member goes from one state to another. One that runs again though its batch was forgotten
-- is no member any more.
local is_open = { ready = true, held = true, scheduled = true, running = true }
function batch_kit.moved(id, h, old, state)
  local again = old ~= '' and not is_open[old]
  local b = again and batch_kit.of(h[BATCH], h[CREATED]) or not again and batch_kit.one(h[BATCH])
  if again and not b then h[BATCH], h[FINISH] = '', 0 end
  if not b then return end
  if b[B_PRIORITY] >= 0 and h[PRIORITY] ~= b[B_PRIORITY] and (state == 'ready' or state == 'held') then
    h[PRIORITY], lines[id] = b[B_PRIORITY], nil
  end
  if old == '' then return h.known or batch_kit.join(b, id) end   -- known: it is only moved to another queue
  if is_open[old] and not is_open[state] then
    local number = batch_kit.leave(b, id, state)
    if state ~= 'done' then h[FINISH] = number end
  elseif again then
    batch_kit.back(b, id, old, h[FINISH])
    h[FINISH] = 0
  end
end

-- subject(b) → what an event about a batch is told of, in place of a header.
function batch_kit.subject(b)
  return { [STATE] = '', [TASK] = b[B_NAME], [QUEUE] = '', [FAILURES] = 0, [CRASHES] = 0 }
end

-- time_of(ms) → a time as msgpack has it.
local function time_of(ms)
  return '\199\12\255' .. struct.pack('>I4i8', (ms % 1000) * 1000000, math.floor(ms / 1000))
end

-- told(b) → its status, as batch_state.BatchStatus reads it.
function batch_kit.told(b)
  local nothing = cmsgpack.pack(nil)
  return '\222\0\15' .. cmsgpack.pack(
      'id', b.id, 'name', b[B_NAME], 'state', b[B_PHASE], 'total', b[B_TOTAL], 'done', b[B_DONE], 'dead', b[B_DEAD],
      'cancelled', b[B_CANCELLED], 'pending', batch_kit.pending(b), 'open', b[B_PHASE] == 'open', 'reason', b[B_REASON],
      'generation', b[B_GENERATION], 'parent', b[B_PARENT], 'priority')
    .. (b[B_PRIORITY] >= 0 and cmsgpack.pack(b[B_PRIORITY]) or nothing)
    .. cmsgpack.pack('created') .. time_of(b[B_CREATED])
    .. cmsgpack.pack('ended') .. (b[B_ENDED] > 0 and time_of(b[B_ENDED]) or nothing)
end

-- close(b, shut): from now on no member starts, or they do again.
function batch_kit.close(b, shut)
  local name = 'batch:' .. b.id
  local limit = tonumber(unpacked(call('HGET', limits, name))[1]) or -1
  if limit < 0 and not shut then erase(limits, name) else set(limits, name, cmsgpack.pack({ limit, shut and 1 or 0 })) end
  fetch({ name })
  local lane = lane_apart(name)
  lane.paused, lane.rest = shut, nil   -- what it allows is worked out again
  if lane.declared ~= '' then refill(lane_named(name)) end
end
