-- Skills: which tasks a live worker knows and which queues it serves. Workers with the same skills share a set, named by its hash;
-- `skills` lists the workers of each set, `meta` has the set of each worker. Only when a set comes or goes are the sets compared:
-- `meta` then has for each what it lacks, the tasks that it does not know while another live worker of the same queue does.
-- Lease leaves their jobs to that worker (lib/known_jobs.lua). While no set lacks anything, `uneven` is empty and nobody looks further.
-- A worker that names no tasks belongs to no set and is given everything.

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

local MOST_SETS = 50   -- comparing takes a millisecond or two for so many; with more of them nothing is left to others

-- tasks_named(info) → the tasks in a worker's information; nothing if it names none.
local function tasks_named(info)
  local fine, about = pcall(cjson.decode, info)
  local named, tasks = fine and type(about) == 'table' and about.tasks, {}
  if type(named) ~= 'table' then return nil end
  for _, task in ipairs(named) do
    if type(task) == 'string' and not string.find(task, SEP, 1, true) then tasks[#tasks + 1] = task end
  end
  return tasks[1] and tasks
end

-- set_of(info, serves) → the name of the set of a worker with this information and these queues; nothing if it is in none.
local function set_of(info, serves)
  local tasks = tasks_named(info)
  if not tasks then return nil end
  return string.sub(redis.sha1hex(table.concat(tasks, SEP) .. SEP .. SEP .. table.concat(serves, SEP)), 1, 12)
end

-- node_of(worker) → its information and its queues, as it registered them.
local function node_of(worker)
  local fine, node = pcall(cmsgpack.unpack, call('HGET', keys.nodes, worker) or '')
  if not fine or type(node) ~= 'table' or type(node[2]) ~= 'table' then return '', {} end
  return node[1], node[2]
end

-- has_members(skill_set) → does any worker belong to it?
function M.has_members(skill_set)
  return #call('ZRANGE', keys.skills, '[' .. skill_set .. SEP, '(' .. skill_set .. AFTER, 'BYLEX', 'LIMIT', 0, 1) > 0
end

-- sets_in_use() → name, tasks and queues of each set, as its first worker says; nothing if there are too many.
local function sets_in_use()
  local sets, from = {}, '('
  while true do
    local member = call('ZRANGE', keys.skills, from, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    if not member then return sets end
    if #sets == MOST_SETS then return nil end
    local name = string.match(member, '^[^\31]*')
    local info, serves = node_of(string.sub(member, #name + 2))
    sets[#sets + 1] = { name = name, tasks = tasks_named(info) or {}, serves = serves }
    from = '[' .. name .. AFTER
  end
end

-- known_where(sets) → all tasks, each once; and task → queue or * → true, where somebody knows it.
local function known_where(sets)
  local tasks, where = {}, {}
  for _, skill_set in ipairs(sets) do
    for _, task in ipairs(skill_set.tasks) do
      if not where[task] then where[task], tasks[#tasks + 1] = {}, task end
      for _, queue in ipairs(skill_set.serves) do where[task][queue] = true end
    end
  end
  return tasks, where
end

-- lacks_of(skill_set, tasks, where) → as text: a queue that the set serves, a task that it does not know but others of that queue do, …
local function lacks_of(skill_set, tasks, where)
  local knows, serves, found = {}, {}, {}
  for _, task in ipairs(skill_set.tasks) do knows[task] = true end
  for _, queue in ipairs(skill_set.serves) do serves[queue] = true end
  for _, task in ipairs(tasks) do
    for queue in pairs(knows[task] and {} or where[task]) do
      if queue == '*' or serves['*'] or serves[queue] then found[#found + 1] = queue .. SEP .. task end
    end
  end
  table.sort(found)
  return table.concat(found, SEP)
end

-- tell_meta(field, text) → 1 if that was not there, else 0. An empty text is not stored.
local function tell_meta(field, text)
  if (call('HGET', keys.meta, field) or '') == text then return 0 end
  if text == '' then call('HDEL', keys.meta, field) else call('HSET', keys.meta, field, text) end
  return 1
end

-- compare_skills() → how much changed in what `meta` says about the sets.
function M.compare_skills()
  local sets, changed, uneven = sets_in_use(), 0, ''
  local tasks, where = known_where(sets or {})
  for _, skill_set in ipairs(sets or {}) do
    local text = lacks_of(skill_set, tasks, where)
    if text ~= '' then uneven = '1' end
    changed = changed + tell_meta('lacks' .. SEP .. skill_set.name, text)
  end
  return changed + tell_meta('uneven', uneven)
end

-- forget_skills(worker): it lives no more, or comes with others.
function M.forget_skills(worker)
  local skill_set = call('HGET', keys.meta, 'skills' .. SEP .. worker)
  if not skill_set then return end
  call('ZREM', keys.skills, skill_set .. SEP .. worker)
  call('HDEL', keys.meta, 'skills' .. SEP .. worker)
  if M.has_members(skill_set) then return end
  call('HDEL', keys.meta, 'lacks' .. SEP .. skill_set)
  M.compare_skills()
end

-- has_skills(worker, skill_set) → is that its set?
function M.has_skills(worker, skill_set) return set_of(node_of(worker)) == skill_set end

-- remember_skills(worker) → was anything missing of what follows from its node? It is there now.
function M.remember_skills(worker)
  local skill_set = set_of(node_of(worker))
  if not skill_set then return false end
  local is_new = call('ZADD', keys.skills, 0, skill_set .. SEP .. worker) == 1
  return tell_meta('skills' .. SEP .. worker, skill_set) == 1 or is_new
end

-- note_skills(worker, info, serves): it is in `nodes` with these.
function M.note_skills(worker, info, serves)
  local skill_set = set_of(info, serves)
  if call('HGET', keys.meta, 'skills' .. SEP .. worker) == (skill_set or false) then return end
  M.forget_skills(worker)
  if not skill_set then return end
  local is_new = not M.has_members(skill_set)
  call('ZADD', keys.skills, 0, skill_set .. SEP .. worker)
  call('HSET', keys.meta, 'skills' .. SEP .. worker, skill_set)
  if is_new then M.compare_skills() end
end

return M
