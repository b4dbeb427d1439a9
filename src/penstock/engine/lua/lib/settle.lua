-- Settling: a page of jobs of one worker, each by the attempt that holds it. An attempt that does not hold it changes
-- nothing; the one that settled it last gets its first answer again; nobody spoils the page for the others.
-- keys: attempts

local KEPT = 10   -- failed tries remembered per job

-- remember(id, h, outcome, text): adds the running attempt to the job's history.
local function remember(id, h, outcome, text)
  local raw = call('HGET', attempts, id)
  local fine, history = pcall(cmsgpack.unpack, raw or '')
  if not fine or type(history) ~= 'table' then history = {} end
  if #history >= KEPT then table.remove(history, 1) end
  local worker = string.match(h[CLAIM], '^[^\31]*')
  history[#history + 1] = { h[FAILURES] + h[CRASHES] + 1, h[STARTED], now, worker, outcome, text }
  store(attempts, id, cmsgpack.pack(history))
end

-- cancelled(verb, id, h): a job whose cancelling was asked for ends so, unless it was quicker and completed.
local function cancelled(verb, id, h)
  h[RELEASES] = h[RELEASES] + 1
  move(verb, id, h, 'cancelled', h[REASON])
end

-- claim_of(number) → the claim of the worker that settles, by this call.
local claims = {}
local function claim_of(number)
  local claim = claims[number] or ARGV[1] .. SEP .. number
  claims[number] = claim
  return claim
end

-- unreadable(id, claim) → does this attempt hold a job whose header is readable no further than lease read it? It is buried.
local function unreadable(id, claim)
  local raw, mark = spoilt[id] and call('HGET', jobs, id) or '', IS_RUNNING .. cmsgpack.pack(claim)
  if string.sub(raw, 1, #mark) ~= mark then return false end
  local fine, h = pcall(glance, raw, #mark + 18)
  if not fine then return false end
  drop(leases, claim .. SEP .. id)
  meet({ h }, 1)
  for _, spec in ipairs(h[LANES]) do vacate(lane_of(spec), id) end
  tally(deltas, h[QUEUE], 'running', -1)
  quarantine(id, h[QUEUE])
  return true
end

-- settle(verb, width, apply, quick, conclude) → a word per job: ok, cancelled or stale.
-- ARGV: the worker, then per job its id, its call number and width - 2 values more; apply(id, h, at) finds them at ARGV[at].
-- quick is how headers are read, if not as a whole: see headers_of. conclude() is called when all were applied.
local function settle(verb, width, apply, quick, conclude)
  local ids, answers = {}, {}
  for at = 2, ARGC, width do ids[#ids + 1] = ARGV[at] end
  local headers = quick and headers_of(ids, quick) or read(ids)
  meet(headers, #ids)
  for i = 1, #ids do
    local id, h, at = ids[i], headers[i], i * width - width + 2
    local number = ARGV[at + 1]
    local claim = claims[number] or claim_of(number)
    if not h then
      answers[i] = unreadable(id, claim) and 'ok' or 'stale'
    elseif h[STATE] == 'running' and h[CLAIM] == claim then
      local answer = (h[CANCELLING] == 1 and verb ~= 'complete') and 'cancelled' or 'ok'
      if h[FIELDS] then h[LAST] = claim .. SEP .. verb .. SEP .. answer end
      if answer == 'ok' then apply(id, h, at + 2) else cancelled(verb, id, h) end
      answers[i] = answer
    else
      local settled = claim .. SEP .. verb .. SEP
      local last = h[LAST] or settled .. 'ok'   -- what was only glanced at is settled twice in this page
      answers[i] = string.sub(last, 1, #settled) == settled and string.sub(last, #settled + 1) or 'stale'
    end
  end
  if conclude then conclude() end
  finish()
  return answers
end
