-- What a worker lacks: tasks that it does not know while another live worker of the queue does (lib/skills.lua).

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local call = request.call

local M = {}

local lacks_read = {}   -- kept: text, how what a set lacks is stored; lacked, the same as queue or * → task → true

-- of_worker(worker) → queue or * → task → true; nothing if it lacks none.
function M.of_worker(worker)
  if meta.uneven ~= '1' then return nil end
  local set = call('HGET', keys.meta, 'skills' .. SEP .. worker)
  local text = set and call('HGET', keys.meta, 'lacks' .. SEP .. set)
  if not text then return nil end
  if lacks_read.text ~= text then
    local lacked = {}
    for queue, task in string.gmatch(text, '([^\31]+)\31([^\31]+)') do
      lacked[queue] = lacked[queue] or {}
      lacked[queue][task] = true
    end
    lacks_read.text = nil
    lacks_read.lacked = lacked
    lacks_read.text = text
  end
  return lacks_read.lacked
end

-- includes(lacked, queue, task) → is a job of this task in this queue for other workers?
function M.includes(lacked, queue, task)
  local here, anywhere = lacked[queue], lacked['*']
  return here and here[task] or anywhere and anywhere[task] or false
end

-- may_take(worker, queue, task) → or is it for this one?
function M.may_take(worker, queue, task)
  local lacked = M.of_worker(worker)
  return not (lacked and M.includes(lacked, queue, task))
end

return M
