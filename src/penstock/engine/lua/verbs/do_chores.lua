-- do_chores: one page of a chore of a batch: cancel its members, retry dead ones, abandon the batch, or forget it.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: how many members at most, then the chore and its batch as they are in `chores`; without these, the first chore
--       that is due
-- returns: how many members the page had (one more if the chore was not named, so that 0 says that none was due); when
--          the next chore is due or -1, now, 1 if this chore goes on
-- event: cancel, revive, cancel_batch, retry_batch

local request = require 'request'
local keys = require 'keys'
local batch_chores = require 'batch_chores'
local batches = require 'batches'
local cancelling = require 'cancelling'
local jobs = require 'jobs'
local lanes = require 'lanes'
local rerun = require 'rerun'
local writes = require 'writes'
local call = request.call

local M = {}

local LOOK_INTERVAL = 60000   -- ms until forgetting a batch that its parent needs is tried again

-- State of one call.
local limit   -- members in the page at most
local entry   -- entry of the key `chores` with this chore and the id of its batch; nothing if none is due
local id      -- of the batch
local batch   -- its state; nothing if it is forgotten

-- put_off(at): the chore waits until then.
local function put_off(at)
  writes.add_later(keys.chores, at, entry)
  writes.wake_timer_at(keys.chores, at)
end

local function end_chore() writes.remove_later(keys.chores, entry) end

local pages = {}   -- chore → function that does a page of it; it returns how many members the page had, or nothing

function pages.cancel()
  local reason = batch[B_REASON]
  local function on_job(job_id, header) cancelling.cancel('cancel', job_id, header, reason) end
  local function on_batch(inner) batch_chores.cancel('cancel_batch', inner, reason) end
  return batch_chores.do_page(batch, 'u', limit, on_job, on_batch)
end

function pages.retry()
  local function on_job(job_id, header) rerun.rerun('revive', job_id, header) end
  local function on_batch(inner) batch_chores.start_retry('retry_batch', inner) end
  return batch_chores.do_page(batch, 'x', limit, on_job, on_batch)
end

-- A batch is abandoned if it is open and has had no new member for some time.
function pages.abandon()
  local at = batch[B_ADDED] + batch[B_ABANDON_AFTER]
  if batch[B_PHASE] ~= 'open' then
    end_chore()
  elseif at > request.now then
    put_off(at)
  else
    batch_chores.cancel('cancel_batch', batch, 'abandoned')
  end
end

-- is_needed() → is the batch a member of another one that has not ended? Then it may have to run again.
local function is_needed()
  local parent = batches.of_member(batch[B_PARENT], batch[B_CREATED])
  return parent and parent[B_PHASE] ~= 'ended'
end

-- unset_lane(): the lane of the batch loses what was set by hand. A job that was a member may still wait there.
local function unset_lane()
  local name = 'batch:' .. id
  writes.delete(keys.limits, name)
  lanes.fetch({ name })
  local lane = lanes.decode(name)
  lane.set, lane.paused = -1, false
  lane.rest = nil   -- so lanes.named() computes its limit again
  if lane.declared ~= '' then lanes.refill(lanes.named(name)) end
end

function pages.forget()
  if batch and batch[B_PHASE] ~= 'ended' then return end_chore() end
  if batch and is_needed() then return put_off(request.now + LOOK_INTERVAL) end
  local members = call('ZRANGE', keys.roster, '[' .. id .. SEP, '(' .. id .. AFTER, 'BYLEX', 'LIMIT', 0, limit)
  for _, member in ipairs(members) do writes.remove(keys.roster, member) end
  writes.delete(keys.batches, 'spec' .. SEP .. id)
  writes.delete(keys.batches, 'state' .. SEP .. id)
  unset_lane()
  if #members < limit then end_chore() else put_off(request.now) end
  return #members
end

-- is_to_do(chore) → must this chore be done? It may be over, or another chore may have taken its place.
local function is_to_do(chore)
  if chore == 'forget' then return true end
  if chore == 'abandon' then return batch end
  return batch and pages[chore] and batch[B_CHORE] == chore
end

local function first_due()
  return call('ZRANGE', keys.chores, '-inf', request.now, 'BYSCORE', 'LIMIT', 0, 1)[1]
end

function M.run()
  limit = tonumber(request.args[1])
  local is_named = request.argc >= 2
  if is_named then
    entry = request.args[2]
  else
    entry = first_due()
    batch_chores.handover = 0   -- the timer that called goes on at once
  end
  local chore
  chore, id = string.match(entry or '', '^([^\31]*)\31(.*)$')
  batch = id and batches.get(id)
  local n_members = 0
  if is_to_do(chore) then
    n_members = pages[chore]() or 0
  elseif entry then
    end_chore()
  end
  cancelling.finish()
  local goes_on = entry and call('ZSCORE', keys.chores, entry) and 1 or 0
  local n_done = n_members + ((entry and not is_named) and 1 or 0)
  return { n_done, jobs.first_score(keys.chores) or -1, request.now, goes_on }
end

return M
