-- seal_batch: no more members are taken; if none is unfinished, the batch ends here.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: batch
-- returns: how it stands: sealed | ended, or missing
-- event: seal_batch

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local finish = require 'finish'
local transition = require 'transition'
local writes = require 'writes'

local M = {}

function M.run()
  local b = batches.get(request.args[1])
  if not b then return 'missing' end
  if b[B_PHASE] == 'open' then
    b[B_PHASE] = 'sealed'
    writes.remove_later(keys.chores, 'abandon' .. SEP .. b.id)
    transition.add_event('seal_batch', b.id, batches.event_subject(b))
    batches.touch(b)
    finish.write_all()
  end
  return b[B_PHASE]
end

return M
