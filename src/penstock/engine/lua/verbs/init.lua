-- init: makes the namespace, or checks that its layout is that of this version. Each fixed key is kept alive by a
--     sentinel, so that no script ever empties one: in a slot that is being moved to another node of a cluster, a key
--     that vanished under a script would abort it half way.
-- FLAGS: allow-oom
-- KEYS: meta ready leases held holders jobs payloads results attempts unique waiting queues nodes calls counts stats
--       lanes limits crons batches logs idle cancels keepers roster deaths skills heads openings scheduled timers
--       workers lives retired dead finished tombs ticks chores events
-- ARGV: none
-- returns: the version of the layout that was found or made

local request = require 'request'
local keys = require 'keys'
local force_skiplists = require 'force_skiplists'
local call = request.call

local M = {}

-- The fixed keys by what their sentinel is. `meta` needs none, and `events` is a stream.
local LARGE_HASHES = {
  'jobs', 'payloads', 'results', 'attempts', 'unique', 'waiting', 'counts', 'stats', 'logs', 'lanes',
}
local SMALL_HASHES = { 'queues', 'nodes', 'calls', 'limits', 'crons', 'batches' }
local LEXICAL_SETS = {
  'ready', 'held', 'holders', 'leases', 'idle', 'cancels', 'keepers', 'roster', 'deaths', 'skills',
}
local SCORED_SETS = {
  'heads', 'openings', 'scheduled', 'timers', 'workers', 'lives', 'retired', 'dead', 'finished', 'tombs', 'ticks',
  'chores',
}

-- add_sentinels(): makes every fixed key but `meta`.
local function add_sentinels()
  -- The server keeps a hash of up to 512 short values as a list that is searched from its beginning; with 500 jobs
  -- in it that took a third of an enqueue. One value over 64 bytes makes it a hash table, now and whenever it is
  -- loaded.
  local long_value = string.rep('.', 65)
  for _, name in ipairs(LARGE_HASHES) do call('HSET', keys[name], '', long_value) end
  for _, name in ipairs(SMALL_HASHES) do call('HSET', keys[name], '', '') end
  for _, name in ipairs(LEXICAL_SETS) do call('ZADD', keys[name], 0, '') end
  force_skiplists.force_skiplists()
  for _, name in ipairs(SCORED_SETS) do call('ZADD', keys[name], 'inf', '') end
  if call('EXISTS', keys.events) == 0 then
    call('XADD', keys.events, '*', 'e', cmsgpack.pack({ request.now, {} }))
  end
end

-- is_any_queue_set() → may something be set for a queue? If there are more than about a hundred, the answer is yes.
local function is_any_queue_set()
  local page = call('HSCAN', keys.queues, 0, 'COUNT', 100)
  local cursor, fields = page[1], page[2]
  if cursor ~= '0' then return true end
  for i = 2, #fields, 2 do   -- name, setting, …
    if fields[i] ~= '' then return true end
  end
  return false
end

-- restore_hints(): the fields of `meta` with which enqueue spares a look at other keys, in case they were lost.
local function restore_hints()
  if call('ZCARD', keys.idle) > 1 then call('HSET', keys.meta, 'asleep', '1') end   -- 1: the sentinel
  if is_any_queue_set() then call('HSET', keys.meta, 'settings', '1') end
end

function M.run()
  local schema = call('HGET', keys.meta, 'schema')
  if schema and schema ~= SCHEMA then return schema end
  add_sentinels()
  if not schema then call('HSET', keys.meta, 'schema', SCHEMA, 'made', request.now) end
  restore_hints()
  return SCHEMA
end

return M
