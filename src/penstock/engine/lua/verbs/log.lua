-- log: running → running. Lines that attempts wrote; of each job the last ones are kept. They come a moment later than they
-- were written, so any attempt of a job that is not forgotten may add some.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues logs
-- ARGV: worker, then per job: id, call number, how many lines this attempt sent before, and lines: msgpack of
--       [time in ms, attempt, level, text] each
-- returns: per job: ok | stale
-- event: log

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local jobs = require 'jobs'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

local records

local MOST, BYTES, ATTEMPTS = 200, 16384, 4   -- lines, bytes of them, and attempts whose numbers are known, per job

-- kept(id) → what is stored: { attempt, how many lines it sent, … }, how many lines are gone, and the others.
local function kept(id)
  if records[id] then return records[id] end
  local fine, found = pcall(cmsgpack.unpack, call('HGET', keys.logs, id) or '')
  if not fine or type(found) ~= 'table' or type(found[3]) ~= 'table' then found = { {}, 0, {} } end
  records[id] = found
  return found
end

-- shorten(record): without its first lines, if there are too many or they are too long.
local function shorten(record)
  local size, all = 0, record[3]
  local first = #all + 1
  while first > 1 and #all - first + 1 < MOST do
    size = size + #all[first - 1][4]
    if size > BYTES and first <= #all then break end
    first = first - 1
  end
  local rest = {}
  for i = first, #all do rest[#rest + 1] = all[i] end
  record[2], record[3] = record[2] + first - 1, rest
end

-- count(sent, claim, before, n) → how many of these n lines were sent before; from now on all of them were.
local function count(sent, claim, before, n)
  local at = #sent + 1
  for i = 1, #sent, 2 do
    if sent[i] == claim then at = i end
  end
  local known = sent[at + 1] or before
  sent[at], sent[at + 1] = claim, math.max(known, before + n)
  if #sent > ATTEMPTS * 2 then
    table.remove(sent, 1)
    table.remove(sent, 1)
  end
  return math.max(known - before, 0)
end

function M.run()
  local ids, answers = {}, {}
  for at = 2, request.argc, 4 do ids[#ids + 1] = request.args[at] end
  local headers = jobs.read(ids)
  records = {}   -- id → that, for two attempts of a job may be in one page
  for i, id in ipairs(ids) do
    local h, at = headers[i], i * 4 - 1
    answers[i] = 'stale'
    if h and h[COMPACT] == 0 then
      local record, fresh = kept(id), cmsgpack.unpack(request.args[at + 2])
      local first = count(record[1], request.args[1] .. SEP .. request.args[at], tonumber(request.args[at + 1]), #fresh) + 1
      for n = first, #fresh do record[3][#record[3] + 1] = fresh[n] end
      shorten(record)
      writes.set_content(keys.logs, id, cmsgpack.pack(record))
      transition.add_event('log', id, h)
      answers[i] = 'ok'
    end
  end
  finish.write_all()
  return answers
end

return M
