-- watch_batch: asks to be told when a batch ends, or when more of its members have finished; what has is answered at once.
-- FLAGS: allow-oom
-- KEYS: meta jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores waiting results attempts
-- ARGV: the client whose mailbox is to be told, batch, how many finished members at most (0: only its end matters), those
--       after which finish number, how many bytes of them at most
-- returns: its status or '' if there is none, then per member: finish number, id, header, result, failed tries

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local watchers = require 'watchers'
local call = request.call

local M = {}

function M.run()
  local most, size = tonumber(request.args[3]), 0
  local b = batches.get(request.args[2])
  if not b then return { '' } end
  local answer = { batches.status(b) }
  if most > 0 then
    local from = '[' .. batches.numbered(b.id, request.args[4] + 1, '')
    local rows = call('ZRANGE', keys.roster, from, '(' .. b.id .. SEP .. 'f' .. AFTER, 'BYLEX', 'LIMIT', 0, most)
    for _, entry in ipairs(rows) do
      local number, id = string.match(entry, '^[^\31]*\31f\31(%d+)\31(.*)$')
      local row = { number, id, '', '', '' }
      for i, key in ipairs({ keys.jobs, keys.results, keys.attempts }) do
        row[i + 2] = string.sub(id, 1, 1) ~= '{' and call('HGET', key, id) or ''
        size = size + #row[i + 2]
      end
      for i = 1, 5 do answer[#answer + 1] = row[i] end
      if size > tonumber(request.args[5]) then break end
    end
  end
  if #answer == 1 and b[B_PHASE] ~= 'ended' then
    watchers.add((most > 0 and '{more}' or '{end}') .. b.id, request.args[1])
  end
  return answer
end

return M
