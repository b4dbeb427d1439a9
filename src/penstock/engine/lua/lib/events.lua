-- The event of a call: one entry of the stream, which has a line for each group of jobs that the call moved alike.
-- finish.write_all() adds it to the stream. `h` is a header.

local M = {}

local groups
local last_group   -- of the last job: the next one is mostly of the same

function M.reset()
  -- A group is { verb, queue, task, attempt, note, ids, how many ids }. By number, and by its first five values.
  groups = {}
  M.groups = groups
  last_group = nil
end

-- group_of(verb, queue, task, attempt, note) → the group, new or not.
local function group_of(verb, queue, task, attempt, note)
  local name = table.concat({ verb, queue, task, attempt, note }, SEP)
  local group = groups[name]
  if not group then
    group = { verb, queue, task, attempt, note, {}, 0 }
    groups[name], groups[#groups + 1] = group, group
  end
  return group
end

-- add(verb, id, h, note): this happened to the job.
function M.add(verb, id, h, note)
  local queue, task, state, attempt = h[QUEUE], h[TASK], h[STATE], h[FAILURES] + h[CRASHES]
  local has_run = state == 'running' or state == 'done'
  if has_run or (state == 'cancelled' and h[STARTS] > attempt + h[RELEASES]) then attempt = attempt + 1 end
  note = note or ''
  local group = last_group
  if not group or group[1] ~= verb or group[2] ~= queue or group[3] ~= task or group[4] ~= attempt
    or group[5] ~= note then
    group = group_of(verb, queue, task, attempt, note)
    last_group = group
  end
  local n = group[7] + 1
  group[6][n], group[7] = id, n
end

-- last_count() → how many jobs are in the group of the last one.
function M.last_count() return last_group and last_group[7] or 0 end

-- add_plain(verb, queue, note): this happened to a queue, a lane or all of it, and not to jobs.
function M.add_plain(verb, queue, note) group_of(verb, queue, '', 0, note) end

M.group_of = group_of

return M
