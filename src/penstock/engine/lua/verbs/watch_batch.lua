-- watch_batch: a client asks for a message when a batch ends, or when more of its members have finished. If that has
-- happened, it is answered at once.
-- FLAGS: allow-oom
-- KEYS: meta jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores waiting results attempts
-- ARGV: the client that gets the message, batch, how many finished members at most (0: only its end matters), after
--       which finish number, how many bytes of them at most
-- returns: the status of the batch or '' if there is none, then per member: finish number, id, record, result, failed
--          attempts

-- b is the batch: a table of the values that model/batch_state.py names.

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local watchers = require 'watchers'
local call = request.call

local M = {}

-- finished_members(b, after, limit) → up to `limit` entries of `roster`: the members that finished after this number.
local function finished_members(b, after, limit)
  local from, to = '[' .. batches.numbered(b.id, after + 1, ''), '(' .. b.id .. SEP .. 'f' .. AFTER
  return call('ZRANGE', keys.roster, from, to, 'BYLEX', 'LIMIT', 0, limit)
end

-- add_member(answer, entry) → how many bytes of record, result and attempts it added. A batch inside has none.
local function add_member(answer, entry)
  local size, n = 0, #answer
  local number, id = string.match(entry, '^[^\31]*\31f\31(%d+)\31(.*)$')
  local is_batch = string.sub(id, 1, 1) == '{'
  answer[n + 1], answer[n + 2] = number, id
  for i, key in ipairs({ keys.jobs, keys.results, keys.attempts }) do
    local value = not is_batch and call('HGET', key, id) or ''
    answer[n + 2 + i] = value
    size = size + #value
  end
  return size
end

function M.run()
  local client, limit, max_size, size = request.args[1], tonumber(request.args[3]), tonumber(request.args[5]), 0
  local b = batches.get(request.args[2])
  if not b then return { '' } end
  local answer = { batches.status(b) }
  if limit > 0 then
    for _, entry in ipairs(finished_members(b, request.args[4], limit)) do
      size = size + add_member(answer, entry)
      if size > max_size then break end
    end
  end
  if #answer == 1 and b[B_PHASE] ~= 'ended' then
    watchers.add((limit > 0 and '{more}' or '{end}') .. b.id, client)
  end
  return answer
end

return M
