-- open_batch: a batch begins, alone or as a member of another.
-- FLAGS: none (a full server refuses new batches as it refuses new jobs)
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: batch, nonce of this call, name, its parent (the batch that it is a member of) or '', priority of its members
--       or -1, limit or -1, ms without a new member after which it is abandoned, ms that it is kept after its end, how
--       deep batches may be inside each other, spec (opaque)
-- returns: created (also if this call made it before) | exists (also while a batch with this id is being forgotten), or
--          why the parent does not take it: unknown | sealed | cancelled | ended | deep
-- event: open_batch

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local events = require 'events'
local finish = require 'finish'
local writes = require 'writes'
local call = request.call

local M = {}

-- new_batch(id, depth) → the batch, as this call opens it.
local function new_batch(id, depth)
  local nonce, name, parent_id, priority, limit, abandon_after, keep = unpack(request.args, 2, 8)
  local batch = { id = id }
  for field = 1, B_FIELDS do batch[field] = 0 end
  for _, field in ipairs({ B_REASON, B_OUTCOME, B_CHORE, B_CURSOR, B_RETRIED }) do batch[field] = '' end
  batch[B_PHASE], batch[B_NAME], batch[B_NONCE] = 'open', name, nonce
  batch[B_PARENT], batch[B_DEPTH] = parent_id, depth
  batch[B_CREATED], batch[B_ADDED], batch[B_GENERATION] = request.now, request.now, 1
  batch[B_PRIORITY], batch[B_LIMIT] = tonumber(priority), tonumber(limit)
  batch[B_ABANDON_AFTER], batch[B_KEEP] = tonumber(abandon_after), tonumber(keep)
  return batch
end

-- existing(id, nonce) → the answer if there is a batch with this id, or if one is being forgotten.
local function existing(id, nonce)
  local batch = batches.get(id)
  if batch then return batch[B_NONCE] == nonce and 'created' or 'exists' end
  if call('ZSCORE', keys.chores, 'forget' .. SEP .. id) then return 'exists' end
end

-- open(batch, parent, spec): makes all writes for this new batch.
local function open(batch, parent, spec)
  local id, abandoned_at = batch.id, request.now + batch[B_ABANDON_AFTER]
  batches.add(batch)
  batches.touch(batch)
  if parent then batches.join(parent, '{' .. id) end
  writes.set_content(keys.batches, 'spec' .. SEP .. id, spec)
  writes.add_later(keys.chores, abandoned_at, 'abandon' .. SEP .. id)
  writes.wake_timer_at(keys.chores, abandoned_at)
  events.add('open_batch', id, batches.event_subject(batch))
  finish.write_all()
end

function M.run()
  local id, nonce, parent_id = request.args[1], request.args[2], request.args[4]
  local max_depth, spec = tonumber(request.args[9]), request.args[10]
  local answer = existing(id, nonce)
  if answer then return answer end
  local parent, depth = nil, 1
  if parent_id ~= '' then
    parent = batches.get(parent_id)
    local refusal = batches.refusal(parent)
    if refusal then return refusal end
    depth = parent[B_DEPTH] + 1
  end
  if depth > max_depth then return 'deep' end
  open(new_batch(id, depth), parent, spec)
  return 'created'
end

return M
