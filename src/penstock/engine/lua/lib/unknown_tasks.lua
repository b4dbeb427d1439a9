-- Which tasks a worker does not know while another live worker of the same queue does. lib/skills.lua stores this in
-- `meta`, as text: queue or * (all queues), task, and so on.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local call = request.call

local M = {}

-- The last text that was read, and what it says. Both are kept from call to call: mostly the text is the same.
local known_text, known_tasks

-- parse(text) → a table: queue or * → task → true.
local function parse(text)
  local unknown = {}
  for queue, task in string.gmatch(text, '([^\31]+)\31([^\31]+)') do
    unknown[queue] = unknown[queue] or {}
    unknown[queue][task] = true
  end
  return unknown
end

-- of_worker(worker) → the tasks that this worker does not know, as parse() gives them; nothing if there are none.
function M.of_worker(worker)
  if meta.uneven ~= '1' then return nil end
  local skill_set = call('HGET', keys.meta, 'skills' .. SEP .. worker)
  local text = skill_set and call('HGET', keys.meta, 'lacks' .. SEP .. skill_set)
  if not text then return nil end
  if text ~= known_text then
    local unknown = parse(text)
    known_text = nil   -- a call may be killed between any two statements, so the text is set last
    known_tasks = unknown
    known_text = text
  end
  return known_tasks
end

-- includes(unknown, queue, task) → is this task in this queue among them?
function M.includes(unknown, queue, task)
  local here, anywhere = unknown[queue], unknown['*']
  return here and here[task] or anywhere and anywhere[task] or false
end

-- may_take(worker, queue, task) → may this worker be given a job of this task in this queue?
function M.may_take(worker, queue, task)
  local unknown = M.of_worker(worker)
  return not (unknown and M.includes(unknown, queue, task))
end

return M
