-- Skills: which tasks a live worker knows and which queues it serves. Workers with the same skills are in one set,
-- which is named by the hash of the skills. `skills` lists the workers of each set, and `meta` has the set of each
-- worker. A worker that names no tasks is in no set, and is given jobs of all tasks.

-- A set lacks a task that it does not know if a live worker of another set knows it for one of the same queues.
-- Lease leaves jobs of that task to the other worker (lib/known_jobs.lua). `meta` has what each set lacks, which
-- is worked out anew only when a set comes or goes. While no set lacks anything, `uneven` is empty, and no script
-- reads further.

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

local MAX_SETS = 50   -- to compare so many takes 1 to 2 ms; if there are more, no jobs are left to other workers

-- tasks_in(info) → the tasks that a worker's information names; nothing if it names none.
local function tasks_in(info)
  local is_readable, decoded = pcall(cjson.decode, info)
  local names, tasks = is_readable and type(decoded) == 'table' and decoded.tasks, {}
  if type(names) ~= 'table' then return nil end
  for _, task in ipairs(names) do
    if type(task) == 'string' and not string.find(task, SEP, 1, true) then tasks[#tasks + 1] = task end
  end
  return tasks[1] and tasks
end

-- set_of(info, queues) → the name of the set of a worker with this information and these queues; nothing if it is in
-- none.
local function set_of(info, queues)
  local tasks = tasks_in(info)
  if not tasks then return nil end
  local skill_text = table.concat(tasks, SEP) .. SEP .. SEP .. table.concat(queues, SEP)
  return string.sub(redis.sha1hex(skill_text), 1, 12)
end

-- node_of(worker) → its information and its queues, as it registered them.
local function node_of(worker)
  local is_readable, node = pcall(cmsgpack.unpack, call('HGET', keys.nodes, worker) or '')
  if not is_readable or type(node) ~= 'table' or type(node[2]) ~= 'table' then return '', {} end
  return node[1], node[2]
end

-- has_members(skill_set) → does any worker belong to it?
function M.has_members(skill_set)
  local from, to = '[' .. skill_set .. SEP, '(' .. skill_set .. AFTER
  return #call('ZRANGE', keys.skills, from, to, 'BYLEX', 'LIMIT', 0, 1) > 0
end

-- sets_in_use() → name, tasks and queues of each set, as its first worker registered them; nothing if too many are in
-- use.
local function sets_in_use()
  local sets, from = {}, '('
  while true do
    local member = call('ZRANGE', keys.skills, from, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    if not member then return sets end
    if #sets == MAX_SETS then return nil end
    local name = string.match(member, '^[^\31]*')
    local info, queues = node_of(string.sub(member, #name + 2))
    sets[#sets + 1] = { name = name, tasks = tasks_in(info) or {}, queues = queues }
    from = '[' .. name .. AFTER
  end
end

-- all_tasks(sets) → the tasks of all sets, each once; and task → queue or * → true, where a set knows the task.
local function all_tasks(sets)
  local tasks, known_in = {}, {}
  for _, skill_set in ipairs(sets) do
    for _, task in ipairs(skill_set.tasks) do
      if not known_in[task] then known_in[task], tasks[#tasks + 1] = {}, task end
      for _, queue in ipairs(skill_set.queues) do known_in[task][queue] = true end
    end
  end
  return tasks, known_in
end

-- lacks_of(skill_set, tasks, known_in) → what the set lacks as text: a queue that it serves, a task that it does not
-- know but another set of that queue does, …
local function lacks_of(skill_set, tasks, known_in)
  local knows, serves, lacks = {}, {}, {}
  for _, task in ipairs(skill_set.tasks) do knows[task] = true end
  for _, queue in ipairs(skill_set.queues) do serves[queue] = true end
  for _, task in ipairs(tasks) do
    for queue in pairs(knows[task] and {} or known_in[task]) do
      if queue == '*' or serves['*'] or serves[queue] then lacks[#lacks + 1] = queue .. SEP .. task end
    end
  end
  table.sort(lacks)
  return table.concat(lacks, SEP)
end

-- set_in_meta(field, text) → 1 if this changed the field, else 0. An empty text is not stored.
local function set_in_meta(field, text)
  if (call('HGET', keys.meta, field) or '') == text then return 0 end
  if text == '' then call('HDEL', keys.meta, field) else call('HSET', keys.meta, field, text) end
  return 1
end

-- compare_skills() → how many fields of `meta` changed: what each set lacks, and whether any lacks something.
function M.compare_skills()
  local sets, changes, uneven = sets_in_use() or {}, 0, ''
  local tasks, known_in = all_tasks(sets)
  for _, skill_set in ipairs(sets) do
    local lacks = lacks_of(skill_set, tasks, known_in)
    if lacks ~= '' then uneven = '1' end
    changes = changes + set_in_meta('lacks' .. SEP .. skill_set.name, lacks)
  end
  return changes + set_in_meta('uneven', uneven)
end

-- forget_skills(worker): it is dead, or has other skills now.
function M.forget_skills(worker)
  local skill_set = call('HGET', keys.meta, 'skills' .. SEP .. worker)
  if not skill_set then return end
  call('ZREM', keys.skills, skill_set .. SEP .. worker)
  call('HDEL', keys.meta, 'skills' .. SEP .. worker)
  if M.has_members(skill_set) then return end
  call('HDEL', keys.meta, 'lacks' .. SEP .. skill_set)
  M.compare_skills()
end

-- has_skills(worker, skill_set) → does it belong to this set?
function M.has_skills(worker, skill_set) return set_of(node_of(worker)) == skill_set end

-- remember_skills(worker) → true if its set was not stored as its node in `nodes` says. It is now.
function M.remember_skills(worker)
  local skill_set = set_of(node_of(worker))
  if not skill_set then return false end
  local is_new = call('ZADD', keys.skills, 0, skill_set .. SEP .. worker) == 1
  return set_in_meta('skills' .. SEP .. worker, skill_set) == 1 or is_new
end

-- note_skills(worker, info, queues): a worker registered with this information and these queues.
function M.note_skills(worker, info, queues)
  local skill_set = set_of(info, queues)
  if call('HGET', keys.meta, 'skills' .. SEP .. worker) == (skill_set or false) then return end
  M.forget_skills(worker)
  if not skill_set then return end
  local is_new = not M.has_members(skill_set)
  call('ZADD', keys.skills, 0, skill_set .. SEP .. worker)
  call('HSET', keys.meta, 'skills' .. SEP .. worker, skill_set)
  if is_new then M.compare_skills() end
end

return M
