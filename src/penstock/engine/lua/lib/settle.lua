-- Settling: a page of jobs of one worker, each by the attempt that holds it. An attempt that does not hold it changes
-- nothing; the one that settled it last gets its first answer again; nobody spoils the page for the others.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local counters = require 'counters'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local lanes = require 'lanes'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

local claims

local KEPT = 10   -- failed tries remembered per job

function M.reset()
  claims = {}
end

-- remember_attempt(id, h, outcome, text): adds the running attempt to the job's history.
function M.remember_attempt(id, h, outcome, text)
  local raw = call('HGET', keys.attempts, id)
  local fine, history = pcall(cmsgpack.unpack, raw or '')
  if not fine or type(history) ~= 'table' then history = {} end
  if #history >= KEPT then table.remove(history, 1) end
  local worker = string.match(h[CLAIM], '^[^\31]*')
  history[#history + 1] = { h[FAILURES] + h[CRASHES] + 1, h[STARTED], request.now, worker, outcome, text }
  writes.set_content(keys.attempts, id, cmsgpack.pack(history))
end

-- end_cancelled(verb, id, h): a job whose cancelling was asked for ends so, unless it was quicker and completed. That was an attempt.
function M.end_cancelled(verb, id, h)
  M.remember_attempt(id, h, 'cancelled', cjson.encode({ message = h[REASON] }))
  transition.move(verb, id, h, 'cancelled', h[REASON])
end

-- claim_of(number) → the claim of the worker that settles, by this call.
function M.claim_of(number)
  local claim = claims[number] or request.args[1] .. SEP .. number
  claims[number] = claim
  return claim
end

-- bury_if_unreadable(id, claim) → does this attempt hold a job that is readable no further than its form? It is buried.
function M.bury_if_unreadable(id, claim)
  local raw = jobs.unreadable[id] and call('HGET', keys.jobs, id) or ''
  if record.claim_in(raw) ~= claim then return false end
  local fine, h = pcall(function() return record.header_from(raw, record.form_in(raw)) end)
  if not fine then return false end
  writes.remove(keys.leases, claim .. SEP .. id)
  lane_entry.fetch_lanes({ h }, 1)
  for _, spec in ipairs(h[LANES]) do lanes.vacate(lanes.of(spec), id) end
  counters.add_to(counters.count_changes, 'running', h[QUEUE], -1)
  transition.bury_unreadable(id, h[QUEUE])
  return true
end

-- settle_page(verb, width, apply, quick, alike, settle_alike) → a word per job, in their order: ok, cancelled or stale.
-- ARGV: the worker, then per job its id, its call number and width - 2 values more; apply(id, h, at) finds them at ARGV[at].
-- quick(id, packed, number) is how headers are read, if not as a whole: see headers_of. Those by whose position there is
-- something in alike need none: settle_alike(i, answers) settles some from there on, and gives the position after them.
function M.settle_page(verb, width, apply, quick, alike, settle_alike)
  local answers, ids, numbers, args, count = {}, {}, {}, request.args, (request.argc - 1) / width
  for i = 1, count do
    if not alike[i] then
      local n, at = #ids + 1, i * width - width + 2
      ids[n], numbers[n] = args[at], args[at + 1]
    end
  end
  local headers = quick and jobs.read_waiting(ids, function(id, packed, n) return quick(id, packed, numbers[n]) end) or jobs.read(ids)
  lane_entry.fetch_lanes(headers, #ids)

  local function settle_one(n, at)
    local id, h, number = ids[n], headers[n], numbers[n]
    local claim, word = claims[number] or M.claim_of(number), 'stale'
    if not h then
      if M.bury_if_unreadable(id, claim) then word = 'ok' end
    elseif h[STATE] == 'running' and h[CLAIM] == claim then
      word = (h[CANCELLING] == 1 and verb ~= 'complete') and 'cancelled' or 'ok'
      h[LAST] = claim .. SEP .. verb .. SEP .. word
      if word == 'ok' then apply(id, h, at) else M.end_cancelled(verb, id, h) end
    else
      local settled = claim .. SEP .. verb .. SEP
      if string.sub(h[LAST], 1, #settled) == settled then word = string.sub(h[LAST], #settled + 1) end
    end
    if word == 'stale' then counters.add_to(counters.stat_changes, 'stale', h and h[QUEUE] or '', 1) end
    return word
  end

  local n, i = 0, 1
  while i <= count do
    if alike[i] then
      i = settle_alike(i, answers)
    else
      n = n + 1
      answers[i] = settle_one(n, i * width - width + 4)
      i = i + 1
    end
  end
  return answers
end

-- settle(verb, width, apply) → the same for verbs that read all of each header; and everything is written.
function M.settle(verb, width, apply)
  local answers = M.settle_page(verb, width, apply, nil, {})
  finish.write_all()
  return answers
end

return M
