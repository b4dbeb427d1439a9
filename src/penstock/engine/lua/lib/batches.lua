-- Batches: members are counted as they come, finish and run again. `roster` has an entry for each, lexical:
-- batch SEP u SEP name while it is unfinished; batch SEP f SEP finish number SEP name when it is finished; and of those
-- batch SEP x SEP name if it is dead, batch SEP c SEP name if it was cancelled. The name of a batch inside is { and its id,
-- which no job can have. Every number of a batch follows from how many entries there are.

local request = require 'request'
local keys = require 'keys'
local jobs = require 'jobs'
local lanes = require 'lanes'
local writes = require 'writes'
local call = request.call

local M = {}

local known_batches

-- decimals_of[n] → its two digits
local decimals_of = setmetatable({}, { __index = function(known, n)
  known[n] = string.format('%02d', n)
  return known[n]
end })
local slot_of = { done = B_DONE, dead = B_DEAD, cancelled = B_CANCELLED }
local letter_of = { dead = 'x', cancelled = 'c' }
-- moved(id, h, old, state): a member goes from one state to another. One that runs again though its batch was forgotten
-- is no member any more.
local is_open = { ready = true, held = true, scheduled = true, running = true }

function M.reset()
  M.touched = {}   -- ids of batches whose numbers changed, in this order; by id, the batch
  known_batches = {}   -- id → batch, as read and as it will be stored; false if there is none
end

function M.member(batch, kind, name) return batch .. SEP .. kind .. SEP .. name end

function M.numbered(batch, number, name)
  return batch .. SEP .. 'f' .. SEP .. string.format('%016d', number) .. SEP .. name
end

local function sound(b)
  local _ = b[B_CREATED] + b[B_ADDED] + b[B_ENDED] + b[B_TOTAL] + b[B_DONE] + b[B_DEAD] + b[B_CANCELLED] + b[B_FINISHES]
    + b[B_GENERATION] + b[B_FAILED] + b[B_FINISH] + b[B_PRIORITY] + b[B_LIMIT] + b[B_DEPTH] + b[B_ABANDON_AFTER] + b[B_KEEP]
    + #b[B_PHASE] + #b[B_NAME] + #b[B_PARENT] + #b[B_REASON] + #b[B_OUTCOME] + #b[B_CHORE] + #b[B_CURSOR] + #b[B_RETRIED]
end

-- one(id) → the batch; nothing if there is none, or it cannot be understood.
function M.get(id)
  if known_batches[id] == nil then
    local b = lanes.unpack_list(call('HGET', keys.batches, 'state' .. SEP .. id))
    local fine = pcall(sound, b)
    if fine then b.id = id end
    known_batches[id] = fine and b or false
  end
  return known_batches[id] or nil
end

-- of(id, created) → the batch that a job, or a batch, which was made then is in. Not one that got the id of a forgotten one.
function M.of_member(id, created)
  local b = id ~= '' and M.get(id)
  return b and b[B_CREATED] <= created and b or nil
end

-- since(id) → when a member that comes now is made: not before its batch, whatever the clock says.
function M.since(id) return math.max(request.now, M.get(id)[B_CREATED]) end

function M.add(b) known_batches[b.id] = b end

function M.touch(b)
  if not M.touched[b.id] then
    M.touched[b.id] = b
    M.touched[#M.touched + 1] = b.id
  end
end

-- pending(b) → how many members are unfinished.
function M.pending(b) return b[B_TOTAL] - b[B_DONE] - b[B_DEAD] - b[B_CANCELLED] end

-- refusal(b) → why it takes no members, or nothing.
function M.refusal(b)
  if not b then return 'unknown' end
  if b[B_PHASE] == 'open' then return nil end
  return b[B_PHASE] == 'ended' and 'ended' or b[B_REASON] ~= '' and 'cancelled' or 'sealed'
end

-- adopt(h): what a batch asks of a job that is to be its member: its priority, and its lane before all others.
function M.apply_to(h)
  local b = M.get(h[BATCH])
  if not b then return end
  if b[B_PRIORITY] >= 0 then h[PRIORITY] = b[B_PRIORITY] end
  local own = 'batch:' .. b.id .. SEP .. (b[B_LIMIT] >= 0 and b[B_LIMIT] or '') .. SEP .. SEP .. SEP .. SEP .. '1'
  h[LANES] = { own, unpack(h[LANES]) }
end

-- join(b, name): one member more.
function M.join(b, name)
  b[B_TOTAL], b[B_ADDED] = b[B_TOTAL] + 1, request.now
  writes.add(keys.roster, '0', M.member(b.id, 'u', name))
  M.touch(b)
end

-- leave(b, name, outcome) → its finish number. The entry is written with the contents, before the header: a member
-- whose header says that it is finished then has it, whatever happens in between.
function M.leave(b, name, outcome) return M.leave_all(b, { name }, 1, 1, outcome) end

-- leave_all(b, names, from, to, outcome) → the finish number of the last of these. From one number to the next only the end
-- differs.
function M.leave_all(b, names, from, to, outcome)
  local number, slot, letter = b[B_FINISHES], slot_of[outcome], letter_of[outcome]
  local numbers, exits = writes.command(1, 'ZADD', keys.roster), writes.command(3, 'ZREM', keys.roster)
  local unfinished, a, c, sub, start = M.member(b.id, 'u', ''), numbers.n, exits.n, string.sub, nil
  for i = from, to do
    local name = names[i]
    number = number + 1
    local low = number % 100
    if low == 0 or not start then start = sub(M.numbered(b.id, number, ''), 1, -4) end
    a = a + 2
    numbers[a - 1] = '0'
    numbers[a] = start .. decimals_of[low] .. SEP .. name
    if letter then numbers[a + 1], numbers[a + 2], a = '0', M.member(b.id, letter, name), a + 2 end
    c = c + 1
    exits[c] = unfinished .. name
  end
  numbers.n, exits.n, b[B_FINISHES], b[slot] = a, c, number, b[slot] + to - from + 1
  if outcome == 'dead' then b.died = true end
  b.news = true
  M.touch(b)
  return number
end

-- back(b, name, outcome, number): a member that had finished so runs again; if the batch had ended, it goes on.
function M.rejoin(b, name, outcome, number)
  if b[B_PHASE] == 'ended' then M.reopen(b) end
  local slot = slot_of[outcome]
  b[slot] = b[slot] - 1
  writes.remove(keys.roster, M.numbered(b.id, number, name))
  if letter_of[outcome] then writes.remove(keys.roster, M.member(b.id, letter_of[outcome], name)) end
  writes.add(keys.roster, '0', M.member(b.id, 'u', name))
  M.touch(b)
end

-- finish.reopen_queues(b): it has not ended, after all; its next end is another one. So the batch that it is in goes on, too.
function M.reopen(b)
  local parent = M.of_member(b[B_PARENT], b[B_CREATED])
  if parent and b[B_OUTCOME] ~= '' then M.rejoin(parent, '{' .. b.id, b[B_OUTCOME], b[B_FINISH]) end
  b[B_PHASE], b[B_GENERATION], b[B_ENDED], b[B_FAILED] = 'sealed', b[B_GENERATION] + 1, 0, 0
  b[B_REASON], b[B_OUTCOME], b[B_FINISH] = '', '', 0
  writes.remove_later(keys.chores, 'forget' .. SEP .. b.id)
  M.touch(b)
end

function M.member_moved(id, h, old, state)
  local again = old ~= '' and not is_open[old]
  local b = again and M.of_member(h[BATCH], h[CREATED]) or not again and M.get(h[BATCH])
  if again and not b then h[BATCH], h[FINISH] = '', 0 end
  if not b then return end
  if b[B_PRIORITY] >= 0 and h[PRIORITY] ~= b[B_PRIORITY] and (state == 'ready' or state == 'held') then
    h[PRIORITY], jobs.ready_members[id] = b[B_PRIORITY], nil
  end
  if old == '' then return h.known or M.join(b, id) end   -- known: it is only moved to another queue
  if is_open[old] and not is_open[state] then
    local number = M.leave(b, id, state)
    if state ~= 'done' then h[FINISH] = number end
  elseif again then
    M.rejoin(b, id, old, h[FINISH])
    h[FINISH] = 0
  end
end

-- schedules.event_subject(b) → what an event about a batch is told of, in place of a header.
function M.event_subject(b)
  return { [STATE] = '', [TASK] = b[B_NAME], [QUEUE] = '', [FAILURES] = 0, [CRASHES] = 0 }
end

-- time_of(ms) → a time as msgpack has it.
local function time_of(ms)
  return '\199\12\255' .. struct.pack('>I4i8', (ms % 1000) * 1000000, math.floor(ms / 1000))
end

-- told(b) → its status, as batch_state.BatchStatus reads it.
function M.status(b)
  local nothing = cmsgpack.pack(nil)
  return '\222\0\15' .. cmsgpack.pack(
      'id', b.id, 'name', b[B_NAME], 'state', b[B_PHASE], 'total', b[B_TOTAL], 'done', b[B_DONE], 'dead', b[B_DEAD],
      'cancelled', b[B_CANCELLED], 'pending', M.pending(b), 'open', b[B_PHASE] == 'open', 'reason', b[B_REASON],
      'generation', b[B_GENERATION], 'parent', b[B_PARENT], 'priority')
    .. (b[B_PRIORITY] >= 0 and cmsgpack.pack(b[B_PRIORITY]) or nothing)
    .. cmsgpack.pack('created') .. time_of(b[B_CREATED])
    .. cmsgpack.pack('ended') .. (b[B_ENDED] > 0 and time_of(b[B_ENDED]) or nothing)
end

-- close(b, shut): from now on no member starts, or they do again.
function M.set_paused(b, shut)
  local name = 'batch:' .. b.id
  local limit = tonumber(lanes.unpack_list(call('HGET', keys.limits, name))[1]) or -1
  if limit < 0 and not shut then writes.delete(keys.limits, name) else writes.set(keys.limits, name, cmsgpack.pack({ limit, shut and 1 or 0 })) end
  lanes.fetch({ name })
  local lane = lanes.decode(name)
  lane.paused, lane.rest = shut, nil   -- what it allows is worked out again
  if lane.declared ~= '' then lanes.refill(lanes.named(name)) end
end

return M
