-- init: makes the namespace, or checks that it is one of ours. Each fixed key is kept alive by a sentinel, so that a
-- script never empties one: in a slot that is being moved, a key that vanished under a script would abort it half way.
-- FLAGS: allow-oom
-- KEYS: meta ready leases held holders jobs payloads results attempts unique waiting queues nodes calls counts stats
--       lanes limits crons batches logs idle cancels keepers roster deaths skills heads openings scheduled timers
--       workers lives retired dead finished tombs ticks chores events
-- ARGV: none
-- returns: the schema version found or made

local request = require 'request'
local keys = require 'keys'
local force_skiplists = require 'force_skiplists'
local call = request.call

local M = {}

function M.run()
  local found = call('HGET', keys.meta, 'schema')
  if found and found ~= SCHEMA then return found end
  -- A hash of up to 512 short values is a list that is searched from its beginning: with 500 jobs in it that was a third of an
  -- enqueue. One value over 64 bytes makes it a table at once, and again when it is loaded.
  for _, key in ipairs({ keys.jobs, keys.payloads, keys.results, keys.attempts, keys.unique, keys.waiting, keys.counts, keys.stats, keys.logs, keys.lanes }) do
    call('HSET', key, '', string.rep('.', 65))
  end
  for _, key in ipairs({ keys.queues, keys.nodes, keys.calls, keys.limits, keys.crons, keys.batches }) do call('HSET', key, '', '') end
  for _, key in ipairs({ keys.ready, keys.held, keys.holders, keys.leases, keys.idle, keys.cancels, keys.keepers, keys.roster, keys.deaths, keys.skills }) do
    call('ZADD', key, 0, '')
  end
  force_skiplists.force_skiplists()
  for _, key in ipairs({ keys.heads, keys.openings, keys.scheduled, keys.timers, keys.workers, keys.lives, keys.retired, keys.dead, keys.finished, keys.tombs, keys.ticks, keys.chores }) do
    call('ZADD', key, 'inf', '')
  end
  if call('EXISTS', keys.events) == 0 then
    call('XADD', keys.events, '*', 'e', cmsgpack.pack({ request.now, {} }))
  end
  if not found then call('HSET', keys.meta, 'schema', SCHEMA, 'made', request.now) end
  -- What spares enqueue a look, should it have been lost.
  if call('ZCARD', keys.idle) > 1 then call('HSET', keys.meta, 'asleep', '1') end
  local some = call('HSCAN', keys.queues, 0, 'COUNT', 100)
  for at = 2, #some[2], 2 do
    if some[2][at] ~= '' or some[1] ~= '0' then call('HSET', keys.meta, 'settings', '1') break end   -- of many it may be set for one
  end
  return SCHEMA
end

return M
