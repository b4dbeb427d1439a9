-- Who waits for the end of a job or a batch: names of mailboxes, each followed by SEP. A client that waits again is there once; who
-- is gone is taken out when the list is full; and where more wait than fit in, * stands for all of them: the mailbox that every
-- client listens to. So a list stays short, and so does what a script sends, however many wait.

local request = require 'request'
local keys = require 'keys'
local call = request.call

local M = {}

local WAITERS = 64   -- names that one list has at most

-- listeners_of(names) → those that somebody listens for. Timers (crons) are asked for whether there is one at present or not.
local function listeners_of(names)
  local addresses, found = {}, {}
  for i, name in ipairs(names) do addresses[i] = string.sub(keys.meta, 1, -5) .. 'to:' .. name end
  local counts_of = redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(addresses))
  for i, name in ipairs(names) do
    if counts_of.err or counts_of[2 * i] > 0 or name == 'crons' then found[#found + 1] = name end
  end
  return found
end

-- add(field, client): this client is told when it ends.
function M.add(field, client)
  local text, names = call('HGET', keys.waiting, field) or '', {}
  local function is_listed(name) return string.find(SEP .. text, SEP .. name .. SEP, 1, true) end
  if is_listed(client) or is_listed('*') then return end
  for name in string.gmatch(text, '[^\31]+') do names[#names + 1] = name end
  if #names >= WAITERS then names = listeners_of(names) end
  if #names >= WAITERS then names, client = { is_listed('crons') and 'crons' or nil }, '*' end
  names[#names + 1] = client
  call('HSET', keys.waiting, field, table.concat(names, SEP) .. SEP)
end

return M
