-- Settling: a worker says how a page of its jobs ended, each by the attempt that holds it. An attempt that does not
-- hold its job changes nothing. If it settled the job before, it gets its first answer again. No job affects the others
-- of the page. h is a header.

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

local MAX_ATTEMPTS = 10   -- that are remembered of a job

local claims   -- call number → claim of this worker

function M.reset()
  claims = {}
end

-- read_history(id) → the attempts of a job that are remembered, the last one last.
local function read_history(id)
  local is_readable, history = pcall(cmsgpack.unpack, call('HGET', keys.attempts, id) or '')
  return is_readable and type(history) == 'table' and history or {}
end

-- remember_attempt(id, h, outcome, error_json): adds the running attempt to those that are remembered of the job.
function M.remember_attempt(id, h, outcome, error_json)
  local history, worker = read_history(id), string.match(h[CLAIM], '^[^\31]*')
  if #history >= MAX_ATTEMPTS then table.remove(history, 1) end
  local number = h[FAILURES] + h[CRASHES] + 1
  history[#history + 1] = { number, h[STARTED], request.now, worker, outcome, error_json }
  writes.set_content(keys.attempts, id, cmsgpack.pack(history))
end

-- end_cancelled(verb, id, h): ends a running job that is to be cancelled. Its run counts as an attempt.
function M.end_cancelled(verb, id, h)
  M.remember_attempt(id, h, 'cancelled', cjson.encode({ message = h[REASON] }))
  transition.move(verb, id, h, 'cancelled', h[REASON])
end

-- claim_of(number) → what names the attempts of this worker's lease call with this number.
function M.claim_of(number)
  local claim = claims[number]
  if not claim then
    claim = request.args[1] .. SEP .. number
    claims[number] = claim
  end
  return claim
end

-- bury_if_unreadable(id, claim) → true if it buried the job: this attempt holds it, but its record can be read no
-- further than its form.
function M.bury_if_unreadable(id, claim)
  local raw = jobs.unreadable[id] and call('HGET', keys.jobs, id) or ''
  if record.claim_in(raw) ~= claim then return false end
  local is_readable, h = pcall(function() return record.header_from(raw, record.form_in(raw)) end)
  if not is_readable then return false end
  writes.remove(keys.leases, claim .. SEP .. id)
  lane_entry.fetch_lanes({ h }, 1)
  for _, spec in ipairs(h[LANES]) do lanes.vacate(lanes.of(spec), id) end
  counters.add_to(counters.count_changes, 'running', h[QUEUE], -1)
  transition.bury_unreadable(id, h[QUEUE])
  return true
end

-- first_answer(h, claim, verb) → what this attempt was answered when it settled the job so, or stale if it did not.
local function first_answer(h, claim, verb)
  local settled = claim .. SEP .. verb .. SEP
  return string.sub(h[LAST], 1, #settled) == settled and string.sub(h[LAST], #settled + 1) or 'stale'
end

-- settle_one(verb, id, h, number, apply, at) → ok, cancelled or stale. If this attempt holds the job, apply(id, h,
-- at) settles it, unless it is to be cancelled. A job that has completed is done all the same.
local function settle_one(verb, id, h, number, apply, at)
  local claim = M.claim_of(number)
  local word
  if not h then
    word = M.bury_if_unreadable(id, claim) and 'ok' or 'stale'
  elseif h[STATE] ~= 'running' or h[CLAIM] ~= claim then
    word = first_answer(h, claim, verb)
  elseif h[CANCELLING] == 1 and verb ~= 'complete' then
    word = 'cancelled'
    h[LAST] = claim .. SEP .. verb .. SEP .. word
    M.end_cancelled(verb, id, h)
  else
    word = 'ok'
    h[LAST] = claim .. SEP .. verb .. SEP .. word
    apply(id, h, at)
  end
  if word == 'stale' then counters.add_to(counters.stat_changes, 'stale', h and h[QUEUE] or '', 1) end
  return word
end

-- settle_page(verb, width, apply, quick_header, kinds, settle_kind) → ok, cancelled or stale per job of the page.
--   ARGV has the worker, then `width` values per job: id, call number, and what the verb needs.
--   apply(id, h, at) settles a job by its header; what the verb needs begins at ARGV[at].
--   A job that has something in `kinds`, by position, needs no header: settle_kind(i, answers) settles the job at this
--   position, and maybe some behind it, and gives the position after them.
--   quick_header(id, packed, number), if given, makes the header of a job whose record only gets a new front, or gives
--   nothing. All other headers are read as usual.
function M.settle_page(verb, width, apply, quick_header, kinds, settle_kind)
  local answers, ids, numbers, args, count = {}, {}, {}, request.args, (request.argc - 1) / width
  for i = 1, count do
    if not kinds[i] then
      local n, at = #ids + 1, (i - 1) * width + 2
      ids[n], numbers[n] = args[at], args[at + 1]
    end
  end
  local headers
  if quick_header then
    headers = jobs.read_waiting(ids, function(id, packed, n) return quick_header(id, packed, numbers[n]) end)
  else
    headers = jobs.read(ids)
  end
  lane_entry.fetch_lanes(headers, #ids)

  local n, i = 0, 1
  while i <= count do
    if kinds[i] then
      i = settle_kind(i, answers)
    else
      n = n + 1
      answers[i] = settle_one(verb, ids[n], headers[n], numbers[n], apply, (i - 1) * width + 4)
      i = i + 1
    end
  end
  return answers
end

-- take_back_one(verb, member, id, h, apply): see take_back.
local function take_back_one(verb, member, id, h, apply)
  local claim = string.sub(member, 1, -2 - #id)
  if not h then
    if not M.bury_if_unreadable(id, claim) then writes.remove(keys.leases, member) end
  elseif h[STATE] ~= 'running' or h[CLAIM] ~= claim then
    writes.remove(keys.leases, member)
  elseif h[CANCELLING] == 1 then
    M.end_cancelled(verb, id, h)
  else
    apply(id, h)
  end
end

-- take_back(verb, members, apply): takes the jobs of these members of `leases` from their workers: apply(id, h) is
-- called for each, unless it is to be cancelled. A member that stands for no running attempt is removed.
function M.take_back(verb, members, apply)
  local ids = {}
  for i, member in ipairs(members) do ids[i] = jobs.last_part(member) end
  local headers = jobs.read(ids)
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do take_back_one(verb, members[i], id, headers[i], apply) end
end

-- settle(verb, width, apply) → the same for a verb that reads all headers; and everything is written.
function M.settle(verb, width, apply)
  local answers = M.settle_page(verb, width, apply, nil, {})
  finish.write_all()
  return answers
end

return M
