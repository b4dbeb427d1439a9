-- The ends of batches: which of those that were touched end in this script, and what follows from it. It is the last thing
-- before lanes are refilled and everything is written.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local batches = require 'batches'
local create = require 'create'
local jobs = require 'jobs'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

function M.end_batches()
  local before = create.count

  -- spawn(b, which, what): the job that its spec has for this point of this generation, from which part on. Its id is made of
  -- these, so there is one, however often this is decided.
  local function spawn(b, which, what)
    local raw = call('HGET', keys.batches, 'spec' .. SEP .. b.id) or ''
    local parts = { pcall(struct.unpack, '>I4c0I4c0I4c0I4c0I4c0I4c0', raw) }
    local h = parts[1] and record.new_header(parts[which])
    local id = b.id .. '@' .. what .. '-' .. b[B_GENERATION]
    local there = jobs.read({ id })[1]
    if there and there[CREATED] < b[B_CREATED] then   -- of a batch that had this id before
      id = id .. '-' .. transition.digits(b[B_CREATED])
      there = jobs.read({ id })[1]
    end
    if not h or there or jobs.unreadable[id] then return end
    create.create('enqueue', id, h, parts[which + 1] .. batches.status(b) .. parts[which + 2], 'batch ' .. b.id)
  end

  local function conclude(b)
    b[B_PHASE], b[B_ENDED] = 'ended', request.now
    b[B_OUTCOME] = b[B_REASON] ~= '' and 'cancelled' or b[B_DEAD] > 0 and 'dead' or 'done'
    if b[B_CHORE] == 'cancel' then
      b[B_CHORE], b[B_CURSOR] = '', ''
      writes.remove_later(keys.chores, 'cancel' .. SEP .. b.id)
      batches.set_paused(b, false)
    end
    writes.add_later(keys.chores, request.now + b[B_KEEP], 'forget' .. SEP .. b.id)
    writes.wake_timer_at(keys.chores, request.now + b[B_KEEP])
    transition.finished_ids[#transition.finished_ids + 1] = '{end}' .. b.id
    b.news = true
    transition.add_event('end_batch', b.id, batches.event_subject(b), b[B_OUTCOME])
    spawn(b, 2, 'then')
    local parent = batches.of_member(b[B_PARENT], b[B_CREATED])
    if parent then
      b[B_FINISH] = batches.leave(parent, '{' .. b.id, b[B_OUTCOME])
      batches.touched[#batches.touched + 1] = parent.id   -- again, should it have been looked at already
    end
  end

  local next_one = 1
  while batches.touched[next_one] do
    local b = batches.touched[batches.touched[next_one]]
    if b.died and b[B_FAILED] == 0 then
      b[B_FAILED] = 1
      spawn(b, 5, 'on_failure')
    end
    if b[B_PHASE] == 'sealed' and batches.pending(b) == 0 and b[B_CHORE] ~= 'retry' then conclude(b) end
    next_one = next_one + 1
  end
  for i = 1, #batches.touched do
    local b = batches.touched[batches.touched[i]]
    if b.news then transition.finished_ids[#transition.finished_ids + 1], b.news = '{more}' .. b.id, nil end
    writes.set(keys.batches, 'state' .. SEP .. b.id, cmsgpack.pack({ unpack(b, 1, B_FIELDS) }))
  end
  if create.count > before then
    writes.set_content(keys.meta, 'accepted', (meta.accepted or 0) + create.count)
    for queue in pairs(create.queues) do call('HSETNX', keys.queues, queue, '') end
  end
end

return M
