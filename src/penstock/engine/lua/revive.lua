-- revive: dead | cancelled → ready | held, at the tail of its line, with a fresh budget.
-- include: header write lanes move line enter finish
-- keys: payloads
-- args: the ids
-- returns: per job: ok | missing | taken (its unique key has another holder), or the state that it is in
-- event: revive
local ids, answers = {}, {}
for at = 1, ARGC do ids[#ids + 1] = ARGV[at] end
local headers = read(ids)
meet(headers, #ids)
local taken = {}

local function free(h, id)
  if h[UNIQUE] == '' then return true end
  local holder = taken[h[UNIQUE]] or call('HGET', unique, h[UNIQUE])
  return not holder or holder == id
end

local function fresh(id, h)
  h[FAILURES], h[CRASHES], h[STARTS], h[RELEASES], h[CANCELLING] = 0, 0, 0, 0, 0
  h[GENERATION], h[REASON], h[EXPIRES], h[PROGRESS], h[LAST] = h[GENERATION] + 1, '', 0, '', ''
  h[DUE] = math.min(h[DUE], now)
  if h[UNIQUE] ~= '' then taken[h[UNIQUE]] = id end
  tail(id, h)
  line_up('revive', id, h)
end

for i, id in ipairs(ids) do
  local h = headers[i]
  if not h or h[COMPACT] == 1 or call('HEXISTS', payloads, id) == 0 then
    answers[i] = h and h[STATE] == 'done' and 'done' or 'missing'
  elseif h[STATE] ~= 'dead' and h[STATE] ~= 'cancelled' then
    answers[i] = h[STATE]
  elseif not free(h, id) then
    answers[i] = 'taken'
  else
    fresh(id, h)
    answers[i] = 'ok'
  end
end
finish()
return answers
