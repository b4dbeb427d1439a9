-- set_batch: sets the priority or the limit of a live batch. The jobs that its lane shows get the new priority at once,
--    the jobs that it holds when they are shown.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: batch, priority ('' to leave it), limit (-1: as it was opened with, '' to leave it)
-- returns: ok | missing
-- event: set_batch
-- In the code, `b` is the batch and `h` the header of a job.

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local events = require 'events'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_limits = require 'lane_limits'
local lanes = require 'lanes'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

-- set_limit(name, limit): the lane of the batch has this limit.
local function set_limit(name, limit)
  local paused = tonumber(lanes.unpack_list(call('HGET', keys.limits, name))[2]) or 0
  lane_limits.store_settings(name, limit, paused)
  lanes.fetch({ name })
  lanes.decode(name).set = limit
end

-- set_priority(b, lane, priority): the batch has this priority, and the jobs that its lane shows take their place by
-- it.
local function set_priority(b, lane, priority)
  b[B_PRIORITY] = priority
  writes.set(keys.batches, 'state' .. SEP .. b.id, cmsgpack.pack({ unpack(b, 1, B_FIELDS) }))
  for _, row in pairs(lane.lines) do
    local shown = { unpack(row.shown) }
    for i, h in pairs(jobs.read(shown)) do
      if h[STATE] == 'ready' and h[PRIORITY] ~= priority then transition.move(nil, shown[i], h, 'ready') end
    end
  end
end

function M.run()
  local priority, limit = tonumber(request.args[2]), tonumber(request.args[3])
  local b = batches.get(request.args[1])
  if not b then return 'missing' end
  local name = 'batch:' .. b.id
  if limit then set_limit(name, limit) end
  local lane = lanes.named(name)
  if priority then set_priority(b, lane, priority) end
  if limit then lanes.refill(lane) end
  events.add('set_batch', b.id, batches.event_subject(b))
  finish.write_all()
  return 'ok'
end

return M
