-- Running again: a dead or cancelled job goes to the tail of its line, with a fresh budget.
-- keys: payloads

local revived = {}   -- unique key → the job that has taken it again

local function is_free(h, id)
  if h[UNIQUE] == '' then return true end
  local other = revived[h[UNIQUE]] or call('HGET', unique, h[UNIQUE])
  return not other or other == id
end

-- again(verb, id, h) → ok | missing | taken (another job has its unique key), or the state that it is in.
local function again(verb, id, h)
  if not h or h[COMPACT] == 1 or call('HEXISTS', payloads, id) == 0 then
    return h and h[STATE] == 'done' and 'done' or 'missing'
  end
  if h[STATE] ~= 'dead' and h[STATE] ~= 'cancelled' then return h[STATE] end
  if not is_free(h, id) then return 'taken' end
  h[FAILURES], h[CRASHES], h[STARTS], h[RELEASES], h[CANCELLING] = 0, 0, 0, 0, 0
  h[GENERATION], h[REASON], h[EXPIRES], h[PROGRESS], h[LAST] = h[GENERATION] + 1, '', 0, '', ''
  h[DUE] = math.min(h[DUE], now)
  if h[UNIQUE] ~= '' then revived[h[UNIQUE]] = id end
  tail(id, h)
  line_up(verb, id, h)
  return 'ok'
end
