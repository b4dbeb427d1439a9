-- seal_batch: a batch takes no more members. If none is unfinished, it ends now.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: batch
-- returns: its state now: sealed | ended, or missing
-- event: seal_batch

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local events = require 'events'
local finish = require 'finish'
local writes = require 'writes'

local M = {}

function M.run()
  local id = request.args[1]
  local batch = batches.get(id)
  if not batch then return 'missing' end
  if batch[B_PHASE] ~= 'open' then return batch[B_PHASE] end
  batch[B_PHASE] = 'sealed'
  batches.touch(batch)
  writes.remove_later(keys.chores, 'abandon' .. SEP .. id)
  events.add('seal_batch', id, batches.event_subject(batch))
  finish.write_all()
  return batch[B_PHASE]   -- finish may have ended it
end

return M
