-- What a worker lacks: tasks that it does not know while another live worker of the queue does (lib/skills.lua).

local lacks_read = {}   -- kept: text, how what a set lacks is stored; lacked, the same as queue or * → task → true

-- lacked_by(worker) → queue or * → task → true; nothing if it lacks none.
local function lacked_by(worker)
  if uneven_now ~= '1' then return nil end
  local set = call('HGET', meta, 'skills' .. SEP .. worker)
  local text = set and call('HGET', meta, 'lacks' .. SEP .. set)
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

-- is_lacked(lacked, queue, task) → is a job of this task in this queue for other workers?
local function is_lacked(lacked, queue, task)
  local here, anywhere = lacked[queue], lacked['*']
  return here and here[task] or anywhere and anywhere[task] or false
end

-- may_take(worker, queue, task) → or is it for this one?
local function may_take(worker, queue, task)
  local lacked = lacked_by(worker)
  return not (lacked and is_lacked(lacked, queue, task))
end
