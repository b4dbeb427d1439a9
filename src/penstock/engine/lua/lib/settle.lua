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

-- cancelled(verb, id, h): a job whose cancelling was asked for ends so, unless it was quicker and completed. That was an attempt.
local function cancelled(verb, id, h)
  remember(id, h, 'cancelled', cjson.encode({ message = h[REASON] }))
  move(verb, id, h, 'cancelled', h[REASON])
end

-- claim_of(number) → the claim of the worker that settles, by this call.
local claims = {}
local function claim_of(number)
  local claim = claims[number] or ARGV[1] .. SEP .. number
  claims[number] = claim
  return claim
end

-- unreadable(id, claim) → does this attempt hold a job that is readable no further than its form? It is buried.
local function unreadable(id, claim)
  local raw = spoilt[id] and call('HGET', jobs, id) or ''
  if claim_in(raw) ~= claim then return false end
  local fine, h = pcall(function() return header_from(raw, form_in(raw)) end)
  if not fine then return false end
  drop(leases, claim .. SEP .. id)
  meet({ h }, 1)
  for _, spec in ipairs(h[LANES]) do vacate(lane_of(spec), id) end
  tally(deltas, 'running', h[QUEUE], -1)
  quarantine(id, h[QUEUE])
  return true
end

-- settle_page(verb, width, apply, quick, alike, settle_alike) → a word per job, in their order: ok, cancelled or stale.
-- ARGV: the worker, then per job its id, its call number and width - 2 values more; apply(id, h, at) finds them at ARGV[at].
-- quick(id, packed, number) is how headers are read, if not as a whole: see headers_of. Those by whose position there is
-- something in alike need none: settle_alike(i, answers) settles some from there on, and gives the position after them.
local function settle_page(verb, width, apply, quick, alike, settle_alike)
  local answers, ids, numbers, count = {}, {}, {}, (ARGC - 1) / width
  for i = 1, count do
    if not alike[i] then
      local n, at = #ids + 1, i * width - width + 2
      ids[n], numbers[n] = ARGV[at], ARGV[at + 1]
    end
  end
  local headers = quick and headers_of(ids, function(id, packed, n) return quick(id, packed, numbers[n]) end) or read(ids)
  meet(headers, #ids)

  local function settle_one(n, at)
    local id, h, number = ids[n], headers[n], numbers[n]
    local claim, word = claims[number] or claim_of(number), 'stale'
    if not h then
      if unreadable(id, claim) then word = 'ok' end
    elseif h[STATE] == 'running' and h[CLAIM] == claim then
      word = (h[CANCELLING] == 1 and verb ~= 'complete') and 'cancelled' or 'ok'
      h[LAST] = claim .. SEP .. verb .. SEP .. word
      if word == 'ok' then apply(id, h, at) else cancelled(verb, id, h) end
    else
      local settled = claim .. SEP .. verb .. SEP
      if string.sub(h[LAST], 1, #settled) == settled then word = string.sub(h[LAST], #settled + 1) end
    end
    if word == 'stale' then tally(sums, 'stale', h and h[QUEUE] or '', 1) end
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
local function settle(verb, width, apply)
  local answers = settle_page(verb, width, apply, nil, {})
  finish()
  return answers
end
