-- log: running → running. Stores lines that attempts wrote, and keeps the last ones of each job. They come a moment
-- later than they were written, so any attempt of a job that is not forgotten may add some.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues logs
-- ARGV: worker, then per job: id, call number, how many lines this attempt sent before, and lines: msgpack of
--       [time in ms, attempt, level, text] each
-- returns: per job: ok | stale
-- event: log

-- h is the header of a job.

local request = require 'request'
local keys = require 'keys'
local events = require 'events'
local finish = require 'finish'
local jobs = require 'jobs'
local writes = require 'writes'
local call = request.call

local M = {}

-- Per job:
local MAX_LINES = 200
local MAX_BYTES = 16384     -- of text
local MAX_ATTEMPTS = 4      -- whose numbers of lines are known

local logs   -- id → its log; two attempts of a job may be in one page

-- log_of(id) → the log of a job as it is stored: { claim, how many lines this attempt sent, … }, how many lines
-- were dropped, and the other lines.
local function log_of(id)
  if logs[id] then return logs[id] end
  local is_readable, log = pcall(cmsgpack.unpack, call('HGET', keys.logs, id) or '')
  if not is_readable or type(log) ~= 'table' or type(log[3]) ~= 'table' then log = { {}, 0, {} } end
  logs[id] = log
  return log
end

-- drop_lines(log): drops the first lines if there are too many or they are too long. The last line is always kept.
local function drop_lines(log)
  local size, lines = 0, log[3]
  local first = #lines + 1
  while first > 1 and #lines - first + 1 < MAX_LINES do
    size = size + #lines[first - 1][4]
    if size > MAX_BYTES and first <= #lines then break end
    first = first - 1
  end
  local kept = {}
  for i = first, #lines do kept[#kept + 1] = lines[i] end
  log[2], log[3] = log[2] + first - 1, kept
end

-- count_sent(sent, claim, before, n) → how many of these n lines the attempt has sent already, in an earlier call.
-- From now on it has sent all of them.
local function count_sent(sent, claim, before, n)
  local at = #sent + 1
  for i = 1, #sent, 2 do
    if sent[i] == claim then at = i end
  end
  local known = sent[at + 1] or before
  sent[at], sent[at + 1] = claim, math.max(known, before + n)
  if #sent > MAX_ATTEMPTS * 2 then
    table.remove(sent, 1)
    table.remove(sent, 1)
  end
  return math.max(known - before, 0)
end

-- add_lines(id, claim, before, lines): adds the lines that this attempt sends after so many others.
local function add_lines(id, claim, before, lines)
  local log = log_of(id)
  local all = log[3]
  for n = count_sent(log[1], claim, before, #lines) + 1, #lines do all[#all + 1] = lines[n] end
  drop_lines(log)
  writes.set_content(keys.logs, id, cmsgpack.pack(log))
end

function M.run()
  local args, ids, answers = request.args, {}, {}
  logs = {}
  for at = 2, request.argc, 4 do ids[#ids + 1] = args[at] end
  local headers = jobs.read(ids)
  for i, id in ipairs(ids) do
    local h, at = headers[i], i * 4 - 1   -- of the call number
    answers[i] = 'stale'
    if h and h[COMPACT] == 0 then
      add_lines(id, args[1] .. SEP .. args[at], tonumber(args[at + 1]), cmsgpack.unpack(args[at + 2]))
      events.add('log', id, h)
      answers[i] = 'ok'
    end
  end
  finish.write_all()
  return answers
end

return M
