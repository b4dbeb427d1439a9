-- Old statistics. A field of `stats` begins with its minute. No list says which fields an old minute has, because every
-- script that counts would have to keep that list. So prune looks through the whole hash in passes of PASS_MS. When
-- half of that time is over, a pass has met half of the fields, and so on. It meets each field, whatever is written
-- meanwhile. So no field is older than two hours and two passes.

local request = require 'request'
local keys = require 'keys'
local writes = require 'writes'
local call = request.call

local M = {}

local PASS_MS = 600000   -- what a pass takes if timers prune all the time
local PAGE = 500         -- fields that one call looks at, about

-- read_pass() → the last pass, as `meta` has it:
--   began    when it began
--   cursor   of HSCAN; `end` when it has met all fields
--   met      how many fields it has met
--   all      how many fields there were when it began
local function read_pass()
  local text = call('HGET', keys.meta, 'sweep') or ''
  local began, cursor, met, all = string.match(text, '^(%d+) (%w+) (%d+) (%d+)$')
  return { began = tonumber(began) or 0, cursor = cursor, met = tonumber(met) or 0, all = tonumber(all) or 0 }
end

-- current_pass() → the pass that is under way. A new pass begins when the last one has met all fields and its time is
-- over, or when the clock was set back.
local function current_pass()
  local pass = read_pass()
  local age = request.now - pass.began
  local is_over = not tonumber(pass.cursor)   -- it is `end`, or there was no pass
  if age < 0 or (age >= PASS_MS and is_over) then
    pass = { began = request.now, cursor = '0', met = 0, all = call('HLEN', keys.stats) }
  end
  return pass
end

-- is_behind(pass) → has it met too few fields for its age?
local function is_behind(pass)
  local age = request.now - pass.began
  return age >= PASS_MS or pass.met * PASS_MS <= pass.all * age
end

-- delete_old(rows): deletes the old fields among these; rows has each field and its value.
local function delete_old(rows)
  local oldest_kept = request.now / 60000 - STATS_MINUTES
  for i = 1, #rows, 2 do
    local minute = tonumber(string.match(rows[i], '^%d+'))
    if minute and minute < oldest_kept then writes.delete(keys.stats, rows[i]) end
  end
end

-- sweep() → true if the pass is still behind, so that prune should be called again soon.
function M.sweep()
  local pass = current_pass()
  if pass.cursor == 'end' or not is_behind(pass) then return false end
  local page = call('HSCAN', keys.stats, pass.cursor, 'COUNT', PAGE)
  delete_old(page[2])
  pass.cursor = page[1] == '0' and 'end' or page[1]
  pass.met = pass.met + #page[2] / 2
  local text = string.format('%.0f %s %.0f %.0f', pass.began, pass.cursor, pass.met, pass.all)
  call('HSET', keys.meta, 'sweep', text)
  return pass.cursor ~= 'end' and is_behind(pass)
end

return M
