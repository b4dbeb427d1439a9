-- What one call counts: how many jobs went from which state to which, how many each verb moved, and how long they
-- waited and ran. finish.write_all() adds it to `counts` and `stats`.

local layout = require 'layout'

local M = {}

-- The last moves and the last durations: most jobs of a page are like the one before, so they are added up here first.
local old_state, new_state, moved_queue, moved
local measured_what, measured_queue, measured_ms, measured

local count_changes, stat_changes, became_ready, stopped_running

function M.reset()
  count_changes = {}     -- state → queue → change of its count; `ready` is not stored
  stat_changes = {}      -- verb → queue → jobs; measure → queue → milliseconds; measure and range → queue → jobs
  became_ready = {}      -- queue → how many jobs
  stopped_running = {}   -- queue → how many jobs, which matters where it has a limit
  M.count_changes, M.stat_changes = count_changes, stat_changes
  M.became_ready, M.stopped_running = became_ready, stopped_running
  moved, measured = 0, 0
  moved_queue, measured_queue = nil, nil
end

-- add_to(sheet, name, queue, change): there are few names and maybe many queues, so there is a row for each name.
local function add_to(sheet, name, queue, change)
  local row = sheet[name]
  if not row then
    row = {}
    sheet[name] = row
  end
  row[queue] = (row[queue] or 0) + change
end

local function add_moves()
  if moved == 0 then return end
  if old_state ~= '' then add_to(count_changes, old_state, moved_queue, -moved) end
  add_to(count_changes, new_state, moved_queue, moved)
  if old_state == 'running' then stopped_running[moved_queue] = (stopped_running[moved_queue] or 0) + moved end
  if new_state == 'ready' then became_ready[moved_queue] = (became_ready[moved_queue] or 0) + moved end
  moved = 0
end

-- count_move(old, state, queue): a job of this queue went from one state to another; a new one comes from the state ''.
function M.count_move(old, state, queue)
  if queue == moved_queue and state == new_state and old == old_state then
    moved = moved + 1
    return
  end
  add_moves()
  old_state, new_state, moved_queue, moved = old, state, queue, 1
end

local function add_measured()
  if measured == 0 then return end
  if measured_ms > 0 then   -- the clock may have been set back
    add_to(stat_changes, measured_what, measured_queue, measured_ms * measured)
  end
  add_to(stat_changes, measured_what .. layout.range_of(measured_ms), measured_queue, measured)
  measured = 0
end

-- measure(what, queue, ms, n): n jobs took so long. What is counted is the sum, and how many fell into which range.
function M.measure(what, queue, ms, n)
  if ms == measured_ms and queue == measured_queue and what == measured_what then
    measured = measured + n
    return
  end
  add_measured()
  measured_what, measured_queue, measured_ms, measured = what, queue, ms, n
end

-- add_up(): everything is in the tables of this module from now on.
function M.add_up()
  add_moves()
  add_measured()
end

M.add_to = add_to

return M
