-- reap: the jobs of a dead worker: running → ready | held at the head of the line, or → dead after too many crashes.
-- Anyone may call it, any number at once. A worker that no index knows is dead too.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create ends settle skills life
-- args: how many jobs at most, crashes that bury a job, life in ms of a worker that did not register its own, cause as JSON;
--       then, to reap one worker that is known to be dead, its id and the ids of the jobs it had really started: only those
--       are charged with a crash
-- returns: how many jobs were moved, 1 if there are more
-- event: reap
local limit, budget, named = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGC >= 5 and ARGV[5]
local resumed, life = heard(), tonumber(ARGV[3])

local started = {}
for at = 6, ARGC do started[ARGV[at]] = true end

local HOLDERS = 50   -- workers that hold jobs, of which one call looks whether they are registered

-- add_strays(found): workers that hold jobs and that no index knows. They are looked for in steps, from where the last call ended.
local function add_strays(found)
  local worker = call('HGET', meta, 'stray') or ''
  for _ = 1, HOLDERS do
    local first = call('ZRANGE', leases, worker == '' and '(' or '[' .. worker .. AFTER, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    worker = first and string.match(first, '^[^\31]*') or ''
    if worker == '' then break end
    if not call('ZSCORE', workers, worker) and is_dead(worker, resumed, life) then found[#found + 1] = worker end
  end
  call('HSET', meta, 'stray', worker)
end

-- dead_workers() → those that are past their life, the first hundred, and some that are not registered.
local function dead_workers()
  local found = {}
  for _, worker in ipairs(call('ZRANGE', workers, '-inf', '(' .. now, 'BYSCORE', 'LIMIT', 0, 100)) do
    if is_dead(worker, resumed, life) then found[#found + 1] = worker end
  end
  add_strays(found)
  return found
end

local function lost(id, h)
  if named and not started[id] then
    h[RELEASES] = h[RELEASES] + 1
    return line_up('reap', id, h, 'not_started')
  end
  remember(id, h, 'crash', ARGV[4])
  h[CRASHES] = h[CRASHES] + 1
  if h[CRASHES] < budget then return line_up('reap', id, h, 'crash') end
  h[REASON] = 'crash_loop'
  move('reap', id, h, 'dead', 'crash_loop')
end

local ids, members = {}, {}
local gone = named and { named } or dead_workers()
for _, worker in ipairs(gone) do
  for _, member in ipairs(held_by(worker, limit - #members)) do
    members[#members + 1] = member
    ids[#ids + 1] = last_part(member)
  end
  if #members >= limit then break end
end

local headers = read(ids)
meet(headers, #ids)
for i, id in ipairs(ids) do
  local h = headers[i]
  if not h or h[STATE] ~= 'running' or h[CLAIM] .. SEP .. id ~= members[i] then
    if h or not unreadable(id, string.sub(members[i], 1, -2 - #id)) then drop(leases, members[i]) end
  elseif h[CANCELLING] == 1 then
    cancelled('reap', id, h)
  else
    lost(id, h)
  end
end
finish()
local more = (not named and #ids >= limit) and 1 or 0   -- a full page: there may be other dead workers
for _, worker in ipairs(gone) do
  if #held_by(worker, 1) > 0 then more = 1 else depart(worker) end
end
return { #ids, more }
