-- Schedules: where each stands, and the jobs that it makes. When its ticks are is known to the nodes; a tick is claimed
-- here, by naming the next one as it stands.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local create = require 'create'
local jobs = require 'jobs'
local writes = require 'writes'
local call = request.call

local M = {}

local KEPT_TICKS = 10   -- remembered per schedule
local LONGEST_LINE = 100   -- ticks that wait for the one before them; then no more are claimed
local LOOK_AGAIN = 10000   -- ms until a schedule whose ticks wait is looked at, should nobody tell that its job ended

function M.field(what, schedule) return what .. SEP .. schedule end

-- state_of(schedule) → where it stands; nil if there is none, or it cannot be understood.
function M.state_of(schedule)
  local raw = call('HGET', keys.crons, M.field('state', schedule))
  local fine, s = pcall(cmsgpack.unpack, raw or '')
  if not fine or type(s) ~= 'table' or type(s.line) ~= 'table' or type(s.history) ~= 'table' then return nil end
  if type(s.next) ~= 'number' or type(s.due) ~= 'number' or type(s.last) ~= 'string' then return nil end
  return s
end

-- event_subject(s) → what an event about a schedule is told of, in place of a header.
function M.event_subject(s)
  return { [STATE] = '', [TASK] = s.task, [QUEUE] = s.queue, [FAILURES] = 0, [CRASHES] = 0 }
end

-- add_history(s, nominal, id, word): one more line in its history.
function M.add_history(s, nominal, id, word)
  if #s.history >= KEPT_TICKS then table.remove(s.history, 1) end
  s.history[#s.history + 1] = { nominal, request.now, id, word }
end

function M.unfinished(id)
  local h = id ~= '' and jobs.read({ id })[1]
  return h and (jobs.waits(h) or h[STATE] == 'running')
end

-- spawn(schedule, id, packed, payload) → made, also if it was made before; or unique, if another job has its unique key.
local function spawn(schedule, id, packed, payload)
  if jobs.read({ id })[1] or jobs.unreadable[id] then return 'made' end
  local h = record.new_header(packed)
  if h[UNIQUE] ~= '' and create.unique_holder(h[UNIQUE]) then return 'unique' end
  create.create('enqueue', id, h, payload, 'cron ' .. schedule)
  return 'made'
end

-- ask_to_be_told(id): timers hear of the end of the job that a tick waits for.
local function ask_to_be_told(id)
  local clients = call('HGET', keys.waiting, id) or ''
  if not string.find(SEP .. clients, SEP .. 'crons' .. SEP, 1, true) then
    writes.set(keys.waiting, id, clients .. 'crons' .. SEP)
  end
end

-- run_waiting(schedule, s, packed, payload) → how many jobs it made: those of its line that need not wait.
function M.run_waiting(schedule, s, packed, payload)
  local rest, made = {}, 0
  for i = 1, #s.line, 2 do
    local id, nominal = s.line[i], s.line[i + 1]
    local busy = s.overlap ~= 'allow' and M.unfinished(s.last)
    if busy and s.overlap == 'queue' then
      rest[#rest + 1], rest[#rest + 2] = id, nominal
    else
      local word = busy and 'skipped' or spawn(schedule, id, packed, payload)
      if word == 'made' then
        s.last, s.made, made = id, s.made + 1, made + 1
      else
        s.skipped = s.skipped + 1
      end
      M.add_history(s, nominal, word == 'made' and id or '', word)
    end
  end
  s.line = rest
  if #rest > 0 then ask_to_be_told(s.last) end
  return made
end

function M.is_full(s) return #s.line >= LONGEST_LINE * 2 end

-- save(schedule, s): stores where it stands, and when to look at it.
function M.save(schedule, s)
  s.look = M.is_full(s) and request.now + LOOK_AGAIN or #s.line > 0 and math.min(s.due, request.now + LOOK_AGAIN) or s.due
  writes.set(keys.crons, M.field('state', schedule), cmsgpack.pack(s))
  if s.status == 'active' then
    writes.add(keys.ticks, s.look, schedule)
    writes.wake_timer_at(keys.ticks, s.look)
  else
    writes.remove(keys.ticks, schedule)
  end
end

-- has_keeper(schedule) → is a live worker's code known to have it? Those that are gone are dropped on the way.
function M.has_keeper(schedule)
  local members = call('ZRANGE', keys.keepers, '[' .. schedule .. SEP, '(' .. schedule .. AFTER, 'BYLEX', 'LIMIT', 0, 500)
  local alive = false
  for _, member in ipairs(members) do
    if call('ZSCORE', keys.workers, string.sub(member, #schedule + 2)) then alive = true else writes.remove(keys.keepers, member) end
  end
  return alive or #members == 500
end

return M
