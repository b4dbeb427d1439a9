-- do_chores: one page of what is to be done to a batch: cancelling or reviving members, forgetting it, or giving it up.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: how many members at most, and what of which batch; without it, the first that is due
-- returns: how many members were seen to, and more if nothing was named; when the next one is due or -1, now, 1 if this one
--          goes on
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

local n, due, id, b

-- later(at): it is not time yet.
local function later(at)
  writes.add_later(keys.chores, at, due)
  writes.wake_timer_at(keys.chores, at)
end

-- is_needed(batch) → is its parent unfinished, so that it may have to run again?
local function is_needed(batch)
  local parent = batches.of_member(batch[B_PARENT], batch[B_CREATED])
  return parent and parent[B_PHASE] ~= 'ended'
end

local does = {}   -- chore → what does a page of it

function does.cancel()
  local reason = b[B_REASON]
  local function on_batch(inside) batch_chores.cancel('cancel_batch', inside, reason) end
  return batch_chores.do_page(b, 'u', n, function(name, h) cancelling.cancel('cancel', name, h, reason) end, on_batch)
end

function does.retry()
  local function on_batch(inside) batch_chores.start_retry('retry_batch', inside) end
  return batch_chores.do_page(b, 'x', n, function(name, h) rerun.rerun('revive', name, h) end, on_batch)
end

function does.abandon()
  if b[B_PHASE] ~= 'open' then return writes.remove_later(keys.chores, due) end
  if b[B_ADDED] + b[B_ABANDON_AFTER] > request.now then return later(b[B_ADDED] + b[B_ABANDON_AFTER]) end
  batch_chores.cancel('cancel_batch', b, 'abandoned')
end

-- open_lane(name): what was set by hand of the lane of a batch goes with it; a job that was its member may still wait there.
local function open_lane(name)
  writes.delete(keys.limits, name)
  lanes.fetch({ name })
  local lane = lanes.decode(name)
  lane.set, lane.paused, lane.rest = -1, false, nil
  if lane.declared ~= '' then lanes.refill(lanes.named(name)) end
end

function does.forget()
  if b and b[B_PHASE] ~= 'ended' then return writes.remove_later(keys.chores, due) end
  if b and is_needed(b) then return later(request.now + 60000) end
  local rows = call('ZRANGE', keys.roster, '[' .. id .. SEP, '(' .. id .. AFTER, 'BYLEX', 'LIMIT', 0, n)
  for _, entry in ipairs(rows) do writes.remove(keys.roster, entry) end
  for _, part in ipairs({ 'spec', 'state' }) do writes.delete(keys.batches, part .. SEP .. id) end
  open_lane('batch:' .. id)
  if #rows < n then writes.remove_later(keys.chores, due) else later(request.now) end
  return #rows
end

function M.run()
  local seen
  n, seen = tonumber(request.args[1]), 0
  due = request.argc >= 2 and request.args[2] or call('ZRANGE', keys.chores, '-inf', request.now, 'BYSCORE', 'LIMIT', 0, 1)[1]
  local what
  what, id = string.match(due or '', '^([^\31]*)\31(.*)$')
  b = id and batches.get(id)
  if request.argc < 2 then batch_chores.handover = 0 end   -- a timer goes on at once
  if what and does[what] and (b or what == 'forget') and (what == 'abandon' or what == 'forget' or b[B_CHORE] == what) then
    seen = does[what]() or 0
  elseif due then
    writes.remove_later(keys.chores, due)
  end
  cancelling.finish()
  local goes_on = due and call('ZSCORE', keys.chores, due) and 1 or 0
  return { seen + (request.argc < 2 and due and 1 or 0), jobs.first_score(keys.chores) or -1, request.now, goes_on }
end

return M
