-- prune: done | cancelled | dead → tombstone → gone, by age and by number. Members stay until their batch ends.
--      Old statistics and the names of queues without jobs and settings are forgotten, too.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues results attempts logs
--       retired
-- ARGV: how many of each at most, ms that tombstones are kept, how many done and cancelled jobs are kept, how many
--       tombstones, ms that dead jobs are kept, how many dead jobs
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

local LOOK_INTERVAL = 600000   -- ms until needed members are looked at again: their batch may have ended
local MIN_DELAY = 60000        -- ms that an old member is kept longer at least
local MANY_NAMES = 10          -- forgotten names of queues in a page after which the next page is looked at soon

-- State of one call.
local limit      -- rows of one key that are pruned at most
local n_pruned   -- jobs and tombstones
local has_more   -- is there more to prune?

-- page_of(key, cutoff, max, n_skipped) → up to `limit` ids to prune from an index by time; their scores; how many of
-- them are old. Old ids have a time up to the cutoff and come first. The other ids are too many: they are not among the
-- newest `max`. The first n_skipped rows of the index are not looked at.
local function page_of(key, cutoff, max, n_skipped)
  local ids, scores, n_old = {}, {}, 0
  local n_too_many = call('ZCARD', key) - 1 - max - n_skipped   -- 1: the sentinel
  local rows = call('ZRANGE', key, n_skipped, n_skipped + limit - 1, 'WITHSCORES')
  for i = 1, #rows / 2 do
    local id, score = rows[2 * i - 1], rows[2 * i]
    if id == '' then break end   -- the sentinel, which has the highest score
    local is_old = tonumber(score) <= cutoff
    if not is_old and i > n_too_many then break end
    ids[i], scores[i] = id, score
    if is_old then n_old = i end
  end
  if #ids == limit then has_more = true end
  return ids, scores, n_old
end

-- Tombstones.

local function forget_tombstones(cutoff, max)
  local ids, n_forgotten = page_of(keys.tombs, cutoff, max, 0), 0
  local headers = jobs.read(ids)
  for i, id in ipairs(ids) do
    writes.remove(keys.tombs, id)
    if headers[i] and headers[i][COMPACT] == 1 then
      writes.delete(keys.jobs, id)
      n_forgotten = n_forgotten + 1
    end
  end
  if n_forgotten > 0 then call('HINCRBY', keys.meta, 'forgotten', n_forgotten) end
  n_pruned = n_pruned + #ids
end

-- Finished and dead jobs.

-- needed_rows(key, field) → how many rows at the beginning of this index are members that their batches need; since
-- when that is known. The field of `meta` has that time, and score and id of the last such row.
local function needed_rows(key, field)
  local since, score, id = string.match(call('HGET', keys.meta, field) or '', '^(%d+) (%d+) (.+)$')
  local age = request.now - (tonumber(since) or 0)
  if age < 0 or age >= LOOK_INTERVAL then return 0, request.now end
  if call('ZSCORE', key, id) == score then return call('ZRANK', key, id) + 1, since end
  return call('ZCOUNT', key, '-inf', '(' .. score), since
end

-- put_off(id, header): this finished job is kept twice as long. So a needed member is met a few times, not each minute.
local function put_off(id, header)
  local age = request.now - header[SINCE]
  header[KEEP] = math.max(2 * header[KEEP], age + MIN_DELAY)
  writes.add(keys.finished, header[SINCE] + header[KEEP], id)
  writes.save(id, header)
end

-- prune_index(key, field, cutoff, max): makes tombstones of jobs in `finished` or `dead`. Needed members stay. Old ones
-- in `finished` are put off. The others are noted in this field of `meta`, so that the next calls skip them.
local function prune_index(key, field, cutoff, max)
  local n_skipped, since = needed_rows(key, field)
  local ids, scores, n_old = page_of(key, cutoff, max, n_skipped)
  local headers, n_needed, last_needed = jobs.read(ids), 0, nil
  for i, id in ipairs(ids) do
    local header = headers[i]
    if not header or jobs.index_entry(id, header) ~= key then
      writes.remove(key, id)
    elseif not tombstones.is_needed(header) then
      tombstones.bury('prune', id, header)
    elseif key == keys.finished and i <= n_old then
      put_off(id, header)
    else
      n_needed, last_needed = n_needed + 1, i
    end
  end
  n_pruned = n_pruned + #ids - n_needed
  if last_needed then
    local text = string.format('%.0f %s %s', since, scores[last_needed], ids[last_needed])
    call('HSET', keys.meta, field, text)
  end
end

-- Names of workers.

local function forget_retired(cutoff)
  local workers = call('ZRANGE', keys.retired, '-inf', cutoff, 'BYSCORE', 'LIMIT', 0, limit)
  for _, worker in ipairs(workers) do writes.remove(keys.retired, worker) end
end

function M.run()
  local numbers = {}
  for i = 1, 6 do numbers[i] = tonumber(request.args[i]) end
  local kept_ms, max_finished, max_tombs, dead_kept_ms, max_dead = unpack(numbers, 2, 6)
  limit, n_pruned, has_more = numbers[1], 0, false
  forget_tombstones(request.now - kept_ms, max_tombs)
  prune_index(keys.finished, 'needed_finished', request.now, max_finished)
  prune_index(keys.dead, 'needed_dead', request.now - dead_kept_ms, max_dead)
  forget_retired(request.now - kept_ms)
  if old_stats.sweep() then has_more = true end
  if queue_names.forget_unused() >= MANY_NAMES then has_more = true end
  finish.write_all()
  return { n_pruned, has_more and 1 or 0 }
end

return M
