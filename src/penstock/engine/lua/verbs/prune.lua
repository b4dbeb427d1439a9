-- prune: done | cancelled | dead → tombstone → gone, by age and by number. Members stay until their batch has ended. Names of queues
-- that have no jobs and no settings are forgotten.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues results attempts logs
--       retired
-- ARGV: how many of each at most, life of a tombstone in ms, most finished, most tombstones, life of the dead in ms, most dead
-- returns: how many were pruned, 1 if there is more to do
-- event: prune

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local jobs = require 'jobs'
local old_stats = require 'old_stats'
local queue_names = require 'queue_names'
local tombstones = require 'tombstones'
local writes = require 'writes'
local call = request.call

local M = {}

local limit, late, pruned, full

local LOOK_AGAIN = 600000   -- ms after which members that stay are looked at again, as their batch may have ended

-- known_to_stay(key, field) → how many rows at its beginning are members that stay, as far as was looked, and since when that is known.
-- `meta` has in this field when, and the last of these rows.
local function known_to_stay(key, field)
  local since, score, id = string.match(call('HGET', keys.meta, field) or '', '^(%d+) (%d+) (.+)$')
  local age = request.now - (tonumber(since) or 0)
  if age < 0 or age >= LOOK_AGAIN then return 0, request.now end
  if call('ZSCORE', key, id) == score then return call('ZRANK', key, id) + 1, since end
  return call('ZCOUNT', key, '-inf', '(' .. score), since
end

-- old(key, before, most, from) → ids of a page behind the first rows that are older than that, or too many; their scores.
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
  h[KEEP] = math.max(2 * h[KEEP], request.now - h[SINCE] + 60000)
  writes.add(keys.finished, h[SINCE] + h[KEEP], id)
  writes.save(id, h)
end

local function sweep(key, field, before, most)
  local from, since = known_to_stay(key, field)
  local ids, scores = old(key, before, most, from)
  local headers, stay, last = jobs.read(ids), 0, nil
  for i, id in ipairs(ids) do
    local h = headers[i]
    if not h or jobs.index_entry(id, h) ~= key then
      writes.remove(key, id)
    elseif not tombstones.is_needed(h) then
      tombstones.bury('prune', id, h)
    elseif key == keys.finished and i <= late then
      put_off(id, h)
    else
      stay, last = stay + 1, i
    end
  end
  pruned = pruned + #ids - stay
  if #ids == limit then full = 1 end
  if last then call('HSET', keys.meta, field, string.format('%.0f %s %s', since, scores[last], ids[last])) end
end

function M.run()
  local tomb_life
  limit, tomb_life = tonumber(request.args[1]), tonumber(request.args[2])
  late = nil   -- how many of them are older
  pruned, full = 0, 0
  local gone = old(keys.tombs, request.now - tomb_life, tonumber(request.args[4]), 0)
  local graves, forgotten = jobs.read(gone), 0
  for i, id in ipairs(gone) do
    writes.remove(keys.tombs, id)
    if graves[i] and graves[i][COMPACT] == 1 then
      writes.delete(keys.jobs, id)
      forgotten = forgotten + 1
    end
  end
  if forgotten > 0 then call('HINCRBY', keys.meta, 'forgotten', forgotten) end
  sweep(keys.finished, 'needed_finished', request.now, tonumber(request.args[3]))
  sweep(keys.dead, 'needed_dead', request.now - tonumber(request.args[5]), tonumber(request.args[6]))
  for _, worker in ipairs(call('ZRANGE', keys.retired, '-inf', request.now - tomb_life, 'BYSCORE', 'LIMIT', 0, limit)) do
    writes.remove(keys.retired, worker)
  end
  local behind = old_stats.sweep()
  local many_names = queue_names.forget_unused() >= 10   -- few can wait until the next time
  finish.write_all()
  return { pruned + #gone, (full == 1 or #gone == limit or behind or many_names) and 1 or 0 }
end

return M
