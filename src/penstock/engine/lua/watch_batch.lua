-- watch_batch: asks to be told when a batch ends, or when more of its members have finished; what has is answered at once.
-- flags: allow-oom
-- keys: waiting results attempts
-- include: record header write waiters lanes owners batches wait_for
-- args: the client whose mailbox is to be told, batch, how many finished members at most (0: only its end matters), those
--       after which finish number, how many bytes of them at most
-- returns: its status or '' if there is none, then per member: finish number, id, header, result, failed tries
need_batches()
local kit, most, size = batch_kit, tonumber(ARGV[3]), 0
local b = kit.one(ARGV[2])
if not b then return { '' } end
local answer = { kit.told(b) }
if most > 0 then
  local from = '[' .. kit.numbered(b.id, ARGV[4] + 1, '')
  local rows = call('ZRANGE', roster, from, '(' .. b.id .. SEP .. 'f' .. AFTER, 'BYLEX', 'LIMIT', 0, most)
  for _, entry in ipairs(rows) do
    local number, id = string.match(entry, '^[^\31]*\31f\31(%d+)\31(.*)$')
    local row = { number, id, '', '', '' }
    for i, key in ipairs({ jobs, results, attempts }) do
      row[i + 2] = string.sub(id, 1, 1) ~= '{' and call('HGET', key, id) or ''
      size = size + #row[i + 2]
    end
    for i = 1, 5 do answer[#answer + 1] = row[i] end
    if size > tonumber(ARGV[5]) then break end
  end
end
if #answer == 1 and b[B_PHASE] ~= 'ended' then
  wait_for((most > 0 and '{more}' or '{end}') .. b.id, ARGV[1])
end
return answer
