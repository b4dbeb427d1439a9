-- Clients that wait for the end of a job or a batch. `waiting` has a list of their names for each, and each name is
-- followed by SEP. A client that asks again is listed once. When a list is full, clients that nobody listens for any
-- more are removed. If that is not enough, * stands for all of them: it is the channel that every client subscribes to.
-- So a list stays short, and so does what a script sends, however many clients wait.

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

local MAX_NAMES = 64   -- in one list

-- listeners_of(names) → the names whose channel has a subscriber. Timers share the name `crons`, which is kept even
-- if none of them listens now.
local function listeners_of(names)
  local channels, listeners = {}, {}
  for i, name in ipairs(names) do channels[i] = string.sub(keys.meta, 1, -5) .. 'to:' .. name end
  local subscribers = redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(channels))   -- channel, number, …
  for i, name in ipairs(names) do
    if subscribers.err or subscribers[2 * i] > 0 or name == 'crons' then listeners[#listeners + 1] = name end
  end
  return listeners
end

-- add(field, client): the client gets a message when this job or batch ends.
function M.add(field, client)
  local text, names = call('HGET', keys.waiting, field) or '', {}
  local function is_listed(name) return string.find(SEP .. text, SEP .. name .. SEP, 1, true) end
  if is_listed(client) or is_listed('*') then return end
  for name in string.gmatch(text, '[^\31]+') do names[#names + 1] = name end
  if #names >= MAX_NAMES then names = listeners_of(names) end
  if #names >= MAX_NAMES then
    names = { is_listed('crons') and 'crons' or nil }
    client = '*'
  end
  names[#names + 1] = client
  call('HSET', keys.waiting, field, table.concat(names, SEP) .. SEP)
end

return M
