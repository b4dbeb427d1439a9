-- prune: done | cancelled | dead → tombstone → gone, by age and by number. Members stay until their batch has ended. Names of queues
-- that have no jobs and no settings are forgotten.
-- flags: allow-oom
-- keys: retired
-- include: record mail header write waiters lanes owners batches move line enter finish entomb sweep forget
-- args: how many of each at most, life of a tombstone in ms, most finished, most tombstones, life of the dead in ms, most dead
-- returns: how many were pruned, 1 if there is more to do
-- event: prune
local limit, tomb_life = tonumber(ARGV[1]), tonumber(ARGV[2])

local LOOK_AGAIN = 600000   -- ms after which members that stay are looked at again, as their batch may have ended

-- known_to_stay(key, field) → how many rows at its beginning are members that stay, as far as was looked, and since when that is known.
-- `meta` has in this field when, and the last of these rows.
local function known_to_stay(key, field)
  local since, score, id = string.match(call('HGET', meta, field) or '', '^(%d+) (%d+) (.+)$')
  local age = now - (tonumber(since) or 0)
  if age < 0 or age >= LOOK_AGAIN then return 0, now end
  if call('ZSCORE', key, id) == score then return call('ZRANK', key, id) + 1, since end
  return call('ZCOUNT', key, '-inf', '(' .. score), since
end

-- old(key, before, most, from) → ids of a page behind the first rows that are older than that, or too many; their scores.
local late   -- how many of them are older
local function old(key, before, most, from)
  local ids, scores, over = {}, {}, call('ZCARD', key) - 1 - most - from
  local rows = call('ZRANGE', key, from, from + limit - 1, 'WITHSCORES')
  late = 0
  for i = 1, #rows, 2 do
    local row = (i + 1) / 2
    if rows[i] == '' or (row > over and tonumber(rows[i + 1]) > before) then break end
    ids[row], scores[row] = rows[i], rows[i + 1]
    if tonumber(rows[i + 1]) <= before then late = row end
  end
  return ids, scores
end

-- put_off(id, h): it is kept twice as long, so that it is not met again each time; a minute at least.
local function put_off(id, h)
  h[KEEP] = math.max(2 * h[KEEP], now - h[SINCE] + 60000)
  add(finished, h[SINCE] + h[KEEP], id)
  save(id, h)
end

local pruned, full = 0, 0
local function sweep(key, field, before, most)
  local from, since = known_to_stay(key, field)
  local ids, scores = old(key, before, most, from)
  local headers, stay, last = read(ids), 0, nil
  for i, id in ipairs(ids) do
    local h = headers[i]
    if not h or place(id, h) ~= key then
      drop(key, id)
    elseif not is_needed(h) then
      entomb('prune', id, h)
    elseif key == finished and i <= late then
      put_off(id, h)
    else
      stay, last = stay + 1, i
    end
  end
  pruned = pruned + #ids - stay
  if #ids == limit then full = 1 end
  if last then call('HSET', meta, field, string.format('%.0f %s %s', since, scores[last], ids[last])) end
end

local gone = old(tombs, now - tomb_life, tonumber(ARGV[4]), 0)
local graves, forgotten = read(gone), 0
for i, id in ipairs(gone) do
  drop(tombs, id)
  if graves[i] and graves[i][COMPACT] == 1 then
    erase(jobs, id)
    forgotten = forgotten + 1
  end
end
if forgotten > 0 then call('HINCRBY', meta, 'forgotten', forgotten) end
sweep(finished, 'needed_finished', now, tonumber(ARGV[3]))
sweep(dead, 'needed_dead', now - tonumber(ARGV[5]), tonumber(ARGV[6]))
for _, worker in ipairs(call('ZRANGE', retired, '-inf', now - tomb_life, 'BYSCORE', 'LIMIT', 0, limit)) do
  drop(retired, worker)
end

local behind = sweep_stats()
local many_names = forget_queues() >= 10   -- few can wait until the next time
finish()
return { pruned + #gone, (full == 1 or #gone == limit or behind or many_names) and 1 or 0 }
