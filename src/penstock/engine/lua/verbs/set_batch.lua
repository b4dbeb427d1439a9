-- set_batch: the priority or the limit of a live batch. What its lane shows is shown again, by the other priority; the rest
-- follows when its turn comes.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: batch, priority ('' to leave it), limit (-1: as it was opened with, '' to leave it)
-- returns: ok | missing
-- event: set_batch

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local finish = require 'finish'
local jobs = require 'jobs'
local lanes = require 'lanes'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

function M.run()
  local priority, limit = tonumber(request.args[2]), tonumber(request.args[3])
  local b = batches.get(request.args[1])
  if not b then return 'missing' end
  local name = 'batch:' .. b.id
  if limit then
    local paused = tonumber(lanes.unpack_list(call('HGET', keys.limits, name))[2]) or 0
    if limit < 0 and paused == 0 then writes.delete(keys.limits, name) else writes.set(keys.limits, name, cmsgpack.pack({ limit, paused })) end
    lanes.fetch({ name })
    lanes.decode(name).set = limit
  end
  local lane = lanes.named(name)
  if priority then
    b[B_PRIORITY] = priority
    writes.set(keys.batches, 'state' .. SEP .. b.id, cmsgpack.pack({ unpack(b, 1, B_FIELDS) }))
    for _, row in pairs(lane.lines) do
      local shown = { unpack(row.shown) }
      for i, h in pairs(jobs.read(shown)) do
        if h[STATE] == 'ready' and h[PRIORITY] ~= priority then transition.move(nil, shown[i], h, 'ready') end
      end
    end
  end
  if limit then lanes.refill(lane) end
  transition.add_event('set_batch', b.id, batches.event_subject(b))
  finish.write_all()
  return 'ok'
end

return M
