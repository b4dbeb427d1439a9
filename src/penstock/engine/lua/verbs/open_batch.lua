-- open_batch: a batch begins, alone or as a member of another.
-- FLAGS: none (a full server refuses new batches as it refuses new jobs)
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: batch, nonce of this call, name, the batch that it is in or '', priority of its members or -1, limit or -1, ms
--       without a new member after which it is abandoned, ms that it is remembered after its end, most batches inside each
--       other, and what is made at its end, opaque
-- returns: created (also if this call made it before) | exists (also while one of this id is being forgotten), or why the other batch takes it not: unknown | sealed |
--          cancelled | ended | deep
-- event: open_batch

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local finish = require 'finish'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

function M.run()
  local id, parent_id = request.args[1], request.args[4]
  local before = batches.get(id)
  if before then return before[B_NONCE] == request.args[2] and 'created' or 'exists' end
  if call('ZSCORE', keys.chores, 'forget' .. SEP .. id) then return 'exists' end
  local parent = parent_id ~= '' and batches.get(parent_id)
  local refusal = parent_id ~= '' and batches.refusal(parent)
  if refusal then return refusal end
  local depth = parent and parent[B_DEPTH] + 1 or 1
  if depth > tonumber(request.args[9]) then return 'deep' end
  local b = { id = id }
  for i = 1, B_FIELDS do b[i] = 0 end
  for _, i in ipairs({ B_REASON, B_OUTCOME, B_CHORE, B_CURSOR, B_RETRIED }) do b[i] = '' end
  b[B_PHASE], b[B_NAME], b[B_PARENT], b[B_DEPTH], b[B_NONCE] = 'open', request.args[3], parent_id, depth, request.args[2]
  b[B_CREATED], b[B_ADDED], b[B_GENERATION] = request.now, request.now, 1
  b[B_PRIORITY], b[B_LIMIT], b[B_ABANDON_AFTER], b[B_KEEP] =
    tonumber(request.args[5]), tonumber(request.args[6]), tonumber(request.args[7]), tonumber(request.args[8])
  batches.add(b)
  batches.touch(b)
  if parent then batches.join(parent, '{' .. id) end
  writes.set_content(keys.batches, 'spec' .. SEP .. id, request.args[10])
  writes.add_later(keys.chores, request.now + b[B_ABANDON_AFTER], 'abandon' .. SEP .. id)
  writes.wake_timer_at(keys.chores, request.now + b[B_ABANDON_AFTER])
  transition.add_event('open_batch', id, batches.event_subject(b))
  finish.write_all()
  return 'created'
end

return M
