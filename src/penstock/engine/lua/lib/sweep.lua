-- Old statistics. A field of `stats` begins with its minute, and no list says which fields an old minute has, for whoever counts
-- should not have to keep one. So the hash is looked through in passes of SWEEP ms, in proportion to the time of the pass that is
-- over: whatever is written, each field is met once in every pass, and no field is older than two hours and two passes.
-- keys: stats

local SWEEP = 600000    -- ms that a pass takes where somebody prunes all the time
local PORTION = 500     -- fields that one call looks at

-- sweep_stats() → is there more to look at by now? `meta` has when the pass began, its cursor (`end` when it is over), how
-- many fields it has met, and how many there were when it began.
local function sweep_stats()
  local began, cursor, met, all = string.match(call('HGET', meta, 'sweep') or '', '^(%d+) (%w+) (%d+) (%d+)$')
  began, met, all = tonumber(began) or 0, tonumber(met) or 0, tonumber(all) or 0
  local age = now - began
  if age < 0 or (age >= SWEEP and not tonumber(cursor)) then   -- the next pass
    began, cursor, met, all, age = now, '0', 0, call('HLEN', stats), 0
  end
  local function is_behind() return age >= SWEEP or met * SWEEP <= all * age end
  if cursor == 'end' or not is_behind() then return false end
  local page = call('HSCAN', stats, cursor, 'COUNT', PORTION)
  for i = 1, #page[2], 2 do
    local minute = tonumber(string.match(page[2][i], '^%d+'))
    if minute and minute < now / 60000 - STATS_MINUTES then erase(stats, page[2][i]) end
  end
  cursor, met = page[1] == '0' and 'end' or page[1], met + #page[2] / 2
  call('HSET', meta, 'sweep', string.format('%.0f %s %.0f %.0f', began, cursor, met, all))
  return cursor ~= 'end' and is_behind()
end
