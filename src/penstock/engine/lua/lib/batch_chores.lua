-- Chores: what is done to a batch in pages, because it may have a million members. The program that asked for a chore
-- calls for page after page. If it dies, any timer goes on. The chores here are `cancel` and `retry`;
-- verbs/do_chores.lua has two more.
--
-- b is a batch (batches.lua), h the header of a job.

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local events = require 'events'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local writes = require 'writes'
local call = request.call

local M = {}

function M.reset()
  M.handover = 2000   -- ms after a page until timers may go on with its chore
end

-- begin(b, chore, cursor): the batch has this chore, which goes on behind the member `cursor` ('': with the first).
function M.begin(b, chore, cursor)
  local old, at = b[B_CHORE], request.now + M.handover
  if old ~= '' and old ~= chore then writes.remove_later(keys.chores, old .. SEP .. b.id) end
  b[B_CHORE], b[B_CURSOR] = chore, cursor
  writes.add_later(keys.chores, at, chore .. SEP .. b.id)
  if M.handover > 0 then writes.wake_timer_at(keys.chores, at) end
  batches.touch(b)
end

-- end_chore(b): its chore is done.
local function end_chore(b)
  writes.remove_later(keys.chores, b[B_CHORE] .. SEP .. b.id)
  if b[B_CHORE] == 'cancel' then batches.set_paused(b, false) end
  b[B_CHORE], b[B_CURSOR] = '', ''
  batches.touch(b)
end

-- cancel(verb, b, reason) → cancelled | ended (it had ended before). From now on the batch takes no members and
-- starts none. A chore cancels the members that are unfinished.
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
    end_chore(b)
  end
  events.add(verb, b.id, batches.event_subject(b), reason)
  return 'cancelled'
end

-- is_cancelling(b) → was it cancelled, and has it not ended yet?
function M.is_cancelling(b) return b[B_PHASE] ~= 'ended' and b[B_REASON] ~= '' end

-- start_retry(verb, b) → true if a chore runs its dead members again; false if it has none, or if it is cancelling.
function M.start_retry(verb, b)
  if b[B_CHORE] == 'retry' then return true end
  if b[B_DEAD] == 0 or M.is_cancelling(b) then return false end
  if b[B_PHASE] == 'ended' then batches.reopen(b) end
  M.begin(b, 'retry', '')
  events.add(verb, b.id, batches.event_subject(b))
  return true
end

-- next_names(b, letter, limit) → the names of its next members with such an entry in `roster`, behind the cursor.
local function next_names(b, letter, limit)
  local first = '(' .. batches.member(b.id, letter, b[B_CURSOR])
  local last = '(' .. b.id .. SEP .. letter .. AFTER
  local names, name_at = {}, #batches.member(b.id, letter, '') + 1
  for i, entry in ipairs(call('ZRANGE', keys.roster, first, last, 'BYLEX', 'LIMIT', 0, limit)) do
    names[i] = string.sub(entry, name_at)
  end
  return names
end

-- do_page(b, letter, limit, on_job, on_batch) → the number of members in this page of the chore, at most `limit`.
-- Calls on_job(id, h) or on_batch(b) for each of them. A page with fewer members than `limit` is the last one: it ends
-- the chore.
function M.do_page(b, letter, limit, on_job, on_batch)
  local names = next_names(b, letter, limit)
  local headers = jobs.read(names)
  lane_entry.fetch_lanes(headers, #names)
  for i, name in ipairs(names) do
    local inner = string.sub(name, 1, 1) == '{' and batches.get(string.sub(name, 2))
    local h = headers[i]
    -- Another job or batch may have got the id of a forgotten member.
    if inner then
      if batches.of_member(inner[B_PARENT], inner[B_CREATED]) == b then on_batch(inner) end
    elseif h and batches.of_member(h[BATCH], h[CREATED]) == b then
      on_job(name, h)
    end
  end
  if #names < limit then end_chore(b) else M.begin(b, b[B_CHORE], names[#names]) end
  return #names
end

return M
