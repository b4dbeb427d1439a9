-- The record of a lane: how a lane is stored in the hash `lanes`, and what it is while a call deals with it.
--
-- What is stored is a msgpack list: use, tokens, at, declared, differs; then for each queue its name, waiting, worst
-- and shown. A lock that belongs to a job has -1 as `use` (lib/lock_owners.lua).
-- In a call a lane is a table:
--   name       as in the spec of a job
--   use        how many of its slots are taken
--   tokens     how many starts its rate allowed at the time `at`
--   declared   limit, rate per ms, burst and kind, as its jobs say; '' if it is a lock, or no job has said anything
--   differs    what its jobs said before, if that was something else; '' if not
--   lines      queue → row: `waiting` says how many jobs are held, `shown` has the ids of its jobs in `ready`, and
--              none of these has a priority above `worst`
--   limit, rate, burst, kind   what it allows now; kind is nothing, ordered or hold (lib/lane_limits.lua)
--   set, paused                what was set by hand; -1 and false if nothing was
--   rest       the text that limit, rate, burst and kind come from; nothing if this call did not need them
--   had_rate   did it have a rate when it was stored?
--   stored     what was stored when this call began
--   changed    must it be stored, although `rest` is nothing?
--   opening    when the timer looks at it again, if this call says so
--   owner      the job that the lock belonged to when this call decoded it
--   unlisted   the running job that has a slot, and no entry in `holders` yet

local request = require 'request'

local M = {}

local HUGE_LIST = 221   -- mark of msgpack: a list whose length follows in four bytes
local FIRST_VALUES = 5  -- values in front of the rows
local MAX_VALUES = 400  -- that a function is given at once; a row has four values

-- add_rows(rows, queue, waiting, worst, shown, …) → the rows, after these and those that follow were added.
-- Here and below, `+ 0` and `.. ''` raise an error if the value has another type.
local function add_rows(rows, queue, waiting, worst, shown, ...)
  if not queue then return rows end
  local ids = {}
  for id in string.gmatch(shown, '[^\31]+') do ids[#ids + 1] = id end
  rows[queue] = { waiting = waiting + 0, worst = worst + 0, shown = ids }
  return add_rows(rows, ...)
end

-- lane_with(name, _, …) → a lane with these values. The second argument is a position, which unpack_limit returns
-- before them.
local function lane_with(name, _, use, tokens, at, declared, differs, ...)
  return {
    name = name, use = use + 0, tokens = tokens, at = at + 0, declared = declared .. '', differs = differs .. '',
    lines = add_rows({}, ...), limit = math.huge, set = -1, paused = false, had_rate = at > 0,
  }
end

-- new(name) → a lane of which nothing is stored.
function M.new(name)
  local lane = lane_with(name, nil, 0, nil, request.now, '', '')
  lane.had_rate = false
  return lane
end

-- list_at(raw) → how many values the list has, and the position behind which they begin.
local function list_at(raw)
  local mark = string.byte(raw)
  if mark == HUGE_LIST then return struct.unpack('>I4', raw, 2), 5 end
  if mark - SHORT_LIST > 15 then return struct.unpack('>I2', raw, 2), 3 end
  return mark - SHORT_LIST, 1
end

-- add_rows_from(rows, at, …) → where the next values begin; these rows are added.
local function add_rows_from(rows, at, ...)
  add_rows(rows, ...)
  return at
end

-- unpack(name, raw) → the lane of which this is stored. It raises an error if that is no lane.
function M.unpack(name, raw)
  local n, at = list_at(raw)
  if n <= MAX_VALUES then return lane_with(name, cmsgpack.unpack_limit(raw, n, at)) end
  local lane = lane_with(name, cmsgpack.unpack_limit(raw, FIRST_VALUES, at))
  at = cmsgpack.unpack_limit(raw, FIRST_VALUES, at)
  for left = n - FIRST_VALUES, 1, -MAX_VALUES do
    at = add_rows_from(lane.lines, cmsgpack.unpack_limit(raw, math.min(left, MAX_VALUES), at))
  end
  return lane
end

-- values_of(lines) → the values of the rows that have jobs, and how many values these are.
function M.values_of(lines)
  local values, n = {}, 0
  for queue, row in pairs(lines) do
    if row.waiting > 0 or #row.shown > 0 then
      values[n + 1], values[n + 2] = queue, row.waiting
      values[n + 3], values[n + 4] = row.worst, table.concat(row.shown, SEP)
      n = n + 4
    end
  end
  return values, n
end

-- list_mark(n) → how a list of n values begins.
local function list_mark(n)
  if n > 65535 then return struct.pack('>BI4', HUGE_LIST, n) end
  if n > 15 then return struct.pack('>BI2', LONG_LIST, n) end
  return string.char(SHORT_LIST + n)
end

-- pack(lane, values, n) → what is stored of the lane, whose rows have these values.
function M.pack(lane, values, n)
  local at = lane.rate and request.now or 0
  local packed = list_mark(n + FIRST_VALUES) .. cmsgpack.pack(
    lane.use, lane.tokens or 0, at, lane.declared, lane.differs, unpack(values, 1, math.min(n, MAX_VALUES)))
  for first = MAX_VALUES + 1, n, MAX_VALUES do
    packed = packed .. cmsgpack.pack(unpack(values, first, math.min(first + MAX_VALUES - 1, n)))
  end
  return packed
end

return M
