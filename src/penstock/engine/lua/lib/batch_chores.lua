-- Chores: what is done to batches in pages, by whoever asked for it, and by any timer should that one be gone.

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

function M.reset()
  M.handover = 2000   -- ms after a page until others may go on with it
end

-- begin(b, what, cursor): this is worked off from here on.
function M.begin(b, what, cursor)
  if b[B_CHORE] ~= '' and b[B_CHORE] ~= what then writes.remove_later(keys.chores, b[B_CHORE] .. SEP .. b.id) end
  b[B_CHORE], b[B_CURSOR] = what, cursor
  writes.add_later(keys.chores, request.now + M.handover, what .. SEP .. b.id)
  if M.handover > 0 then writes.wake_timer_at(keys.chores, request.now + M.handover) end
  batches.touch(b)
end

-- let_go(b): that is done.
local function let_go(b)
  writes.remove_later(keys.chores, b[B_CHORE] .. SEP .. b.id)
  if b[B_CHORE] == 'cancel' then batches.set_paused(b, false) end
  b[B_CHORE], b[B_CURSOR] = '', ''
  batches.touch(b)
end

-- cancel(verb, b, reason) → cancelled | ended, as it was. It takes no more members, none of them starts, and they are cancelled
-- in pages.
function M.cancel(verb, b, reason)
  if b[B_PHASE] == 'ended' then return 'ended' end
  if b[B_REASON] ~= '' then return 'cancelled' end
  b[B_PHASE], b[B_REASON] = 'sealed', reason
  writes.remove_later(keys.chores, 'abandon' .. SEP .. b.id)
  batches.touch(b)
  if batches.pending(b) > 0 then
    M.begin(b, 'cancel', '')
    batches.set_paused(b, true)
  elseif b[B_CHORE] ~= '' then
    let_go(b)
  end
  transition.add_event(verb, b.id, batches.event_subject(b), reason)
  return 'cancelled'
end

-- is_cancelling(b) → is it cancelled, though some members still run?
function M.is_cancelling(b) return b[B_PHASE] ~= 'ended' and b[B_REASON] ~= '' end

-- start_retry(verb, b) → are there dead members, so that they are run again in pages?
function M.start_retry(verb, b)
  if b[B_CHORE] == 'retry' then return true end
  if b[B_DEAD] == 0 or M.is_cancelling(b) then return false end
  if b[B_PHASE] == 'ended' then batches.reopen(b) end
  M.begin(b, 'retry', '')
  transition.add_event(verb, b.id, batches.event_subject(b))
  return true
end

-- names_after(b, kind, n) → the names of the next members of this kind, from where its chore has come to.
local function names_after(b, kind, n)
  local from = batches.member(b.id, kind, b[B_CURSOR])
  local names, until_then = {}, '(' .. b.id .. SEP .. kind .. AFTER
  for i, entry in ipairs(call('ZRANGE', keys.roster, '(' .. from, until_then, 'BYLEX', 'LIMIT', 0, n)) do
    names[i] = string.sub(entry, #b.id + #kind + 3)
  end
  return names
end

-- do_page(b, kind, n, on_job, on_batch) → how many were seen to. It is let go after the last.
function M.do_page(b, kind, n, on_job, on_batch)
  local names = names_after(b, kind, n)
  local headers = jobs.read(names)
  lane_entry.fetch_lanes(headers, #names)
  for i, name in ipairs(names) do
    local inside = string.sub(name, 1, 1) == '{' and batches.get(string.sub(name, 2))
    local h = headers[i]
    if inside then
      if batches.of_member(inside[B_PARENT], inside[B_CREATED]) == b then on_batch(inside) end
    elseif h and batches.of_member(h[BATCH], h[CREATED]) == b then   -- another job may have the id of one that was forgotten
      on_job(name, h)
    end
  end
  if #names < n then let_go(b) else M.begin(b, b[B_CHORE], names[#names]) end
  return #names
end

return M
