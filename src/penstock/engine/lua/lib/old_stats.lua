-- Old statistics. A field of `stats` begins with its minute, and no list says which fields an old minute has, for whoever counts
-- should not have to keep one. So the hash is looked through in passes of SWEEP ms, in proportion to the time of the pass that is
-- over: whatever is written, each field is met once in every pass, and no field is older than two hours and two passes.

local request = require 'request'
local keys = require 'keys'
local writes = require 'writes'
local call = request.call

local M = {}

local SWEEP = 600000   -- ms that a pass takes where somebody prunes all the time
local PORTION = 500   -- fields that one call looks at

-- sweep() → is there more to look at by now? `meta` has when the pass began, its cursor (`end` when it is over), how
-- many fields it has met, and how many there were when it began.
function M.sweep()
  local began, cursor, met, all = string.match(call('HGET', keys.meta, 'sweep') or '', '^(%d+) (%w+) (%d+) (%d+)$')
  began, met, all = tonumber(began) or 0, tonumber(met) or 0, tonumber(all) or 0
  local age = request.now - began
  if age < 0 or (age >= SWEEP and not tonumber(cursor)) then   -- the next pass
    began, cursor, met, all, age = request.now, '0', 0, call('HLEN', keys.stats), 0
  end
  local function is_behind() return age >= SWEEP or met * SWEEP <= all * age end
  if cursor == 'end' or not is_behind() then return false end
  local page = call('HSCAN', keys.stats, cursor, 'COUNT', PORTION)
  for i = 1, #page[2], 2 do
    local minute = tonumber(string.match(page[2][i], '^%d+'))
    if minute and minute < request.now / 60000 - STATS_MINUTES then writes.delete(keys.stats, page[2][i]) end
  end
  cursor, met = page[1] == '0' and 'end' or page[1], met + #page[2] / 2
  call('HSET', keys.meta, 'sweep', string.format('%.0f %s %.0f %.0f', began, cursor, met, all))
  return cursor ~= 'end' and is_behind()
end

return M
