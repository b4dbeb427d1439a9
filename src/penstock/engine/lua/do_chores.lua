-- do_chores: one page of what is to be done to a batch: cancelling or reviving members, forgetting it, or giving it up.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create ends stop again chores
-- args: how many members at most, and what of which batch; without it, the first that is due
-- returns: how many members were seen to, and more if nothing was named; when the next one is due or -1, now, 1 if this one
--          goes on
-- event: cancel, revive, cancel_batch, retry_batch
need_batches()
local n, kit, seen = tonumber(ARGV[1]), batch_kit, 0
local due = ARGC >= 2 and ARGV[2] or call('ZRANGE', chores, '-inf', now, 'BYSCORE', 'LIMIT', 0, 1)[1]
local what, id = string.match(due or '', '^([^\31]*)\31(.*)$')
local b = id and kit.one(id)
if ARGC < 2 then handover = 0 end   -- a timer goes on at once

-- later(at): it is not time yet.
local function later(at)
  enter(chores, at, due)
  alarm(chores, at)
end

-- is_needed(batch) → is its parent unfinished, so that it may have to run again?
local function is_needed(batch)
  local parent = kit.of(batch[B_PARENT], batch[B_CREATED])
  return parent and parent[B_PHASE] ~= 'ended'
end

local does = {}
function does.cancel()
  local reason = b[B_REASON]
  local function on_batch(inside) call_off('cancel_batch', inside, reason) end
  return page(b, 'u', n, function(name, h) stop('cancel', name, h, reason) end, on_batch)
end
function does.retry()
  local function on_batch(inside) set_going('retry_batch', inside) end
  return page(b, 'x', n, function(name, h) again('revive', name, h) end, on_batch)
end
function does.abandon()
  if b[B_PHASE] ~= 'open' then return withdraw(chores, due) end
  if b[B_ADDED] + b[B_ABANDON_AFTER] > now then return later(b[B_ADDED] + b[B_ABANDON_AFTER]) end
  call_off('cancel_batch', b, 'abandoned')
end

-- open_lane(name): what was set by hand of the lane of a batch goes with it; a job that was its member may still wait there.
local function open_lane(name)
  erase(limits, name)
  fetch({ name })
  local lane = lane_apart(name)
  lane.set, lane.paused, lane.rest = -1, false, nil
  if lane.declared ~= '' then refill(lane_named(name)) end
end

function does.forget()
  if b and b[B_PHASE] ~= 'ended' then return withdraw(chores, due) end
  if b and is_needed(b) then return later(now + 60000) end
  local rows = call('ZRANGE', roster, '[' .. id .. SEP, '(' .. id .. AFTER, 'BYLEX', 'LIMIT', 0, n)
  for _, entry in ipairs(rows) do drop(roster, entry) end
  for _, part in ipairs({ 'spec', 'state' }) do erase(batches, part .. SEP .. id) end
  open_lane('batch:' .. id)
  if #rows < n then withdraw(chores, due) else later(now) end
  return #rows
end

if what and does[what] and (b or what == 'forget') and (what == 'abandon' or what == 'forget' or b[B_CHORE] == what) then
  seen = does[what]() or 0
elseif due then
  withdraw(chores, due)
end
stopped()
local goes_on = due and call('ZSCORE', chores, due) and 1 or 0
return { seen + (ARGC < 2 and due and 1 or 0), head(chores) or -1, now, goes_on }
