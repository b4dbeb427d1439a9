-- The ends of batches: which of the batches that this call touched end now, which jobs are created then, and what is
-- stored of them. finish.write_all() calls it before lanes show their next jobs and before anything is written.
--
-- b is a batch (batches.lua), h the header of a job.

local request = require 'request'
local keys = require 'keys'
local meta = require 'meta'
local record = require 'record'
local batches = require 'batches'
local create = require 'create'
local events = require 'events'
local jobs = require 'jobs'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

-- The `spec` of a batch has six parts, each behind its length: for each of two jobs a header, and the payload before
-- and behind the batch's status.
local SIX_PARTS = '>I4c0I4c0I4c0I4c0I4c0I4c0'
local first_part = { ['then'] = 1, on_failure = 4 }   -- purpose of the job → the first of its three parts

-- spec_parts(b, purpose) → header, payload before and payload behind the status; nothing if the spec cannot be read.
local function spec_parts(b, purpose)
  local raw = call('HGET', keys.batches, 'spec' .. SEP .. b.id) or ''
  local parts = { pcall(struct.unpack, SIX_PARTS, raw) }
  local at = first_part[purpose] + 1   -- parts[1] says whether it could be read
  if parts[1] then return parts[at], parts[at + 1], parts[at + 2] end
end

-- free_id(b, purpose) → the id of the job for this purpose; nothing if that job exists. The id follows from batch,
-- purpose and generation, so there is one such job, however often it is asked for.
local function free_id(b, purpose)
  local id = b.id .. '@' .. purpose .. '-' .. b[B_GENERATION]
  local existing = jobs.read({ id })[1]
  if existing and existing[CREATED] < b[B_CREATED] then   -- that of an earlier batch with the same id
    id = id .. '-' .. writes.digits(b[B_CREATED])
    existing = jobs.read({ id })[1]
  end
  if not existing and not jobs.unreadable[id] then return id end
end

-- create_job(b, purpose): creates the job that the batch has for this purpose (then | on_failure), if it has one.
local function create_job(b, purpose)
  local header, before, behind = spec_parts(b, purpose)
  local h = header and record.new_header(header)
  local id = h and free_id(b, purpose)
  if id then create.create('enqueue', id, h, before .. batches.status(b) .. behind, 'batch ' .. b.id) end
end

-- leave_parent(b): in the batch that it is a member of, it is a finished member from now on.
local function leave_parent(b)
  local parent = batches.of_member(b[B_PARENT], b[B_CREATED])
  if not parent then return end
  b[B_FINISH] = batches.leave(parent, '{' .. b.id, b[B_OUTCOME])
  batches.touched[#batches.touched + 1] = parent.id   -- it may end now, even if end_touched() has passed it already
end

local function end_batch(b)
  local is_cancelled = b[B_REASON] ~= ''
  b[B_PHASE], b[B_ENDED] = 'ended', request.now
  b[B_OUTCOME] = is_cancelled and 'cancelled' or b[B_DEAD] > 0 and 'dead' or 'done'
  if b[B_CHORE] == 'cancel' then
    b[B_CHORE], b[B_CURSOR] = '', ''
    writes.remove_later(keys.chores, 'cancel' .. SEP .. b.id)
    batches.set_paused(b, false)
  end
  writes.add_later(keys.chores, request.now + b[B_KEEP], 'forget' .. SEP .. b.id)
  writes.wake_timer_at(keys.chores, request.now + b[B_KEEP])
  transition.finished_ids[#transition.finished_ids + 1] = '{end}' .. b.id   -- see the key `waiting`
  b.member_finished = true
  events.add('end_batch', b.id, batches.event_subject(b), b[B_OUTCOME])
  create_job(b, 'then')
  leave_parent(b)
end

-- end_touched(): ends each touched batch that has come to its end. A batch that ends may add its parent to the list.
local function end_touched()
  local touched, i = batches.touched, 1
  while touched[i] do
    local b = touched[touched[i]]
    if b.member_died and b[B_FAILED] == 0 then
      b[B_FAILED] = 1
      create_job(b, 'on_failure')
    end
    if b[B_PHASE] == 'sealed' and batches.pending(b) == 0 and b[B_CHORE] ~= 'retry' then end_batch(b) end
    i = i + 1
  end
end

-- save_touched(): stores the touched batches. Clients that wait for more finished members are sent a message.
local function save_touched()
  for _, id in ipairs(batches.touched) do
    local b = batches.touched[id]
    if b.member_finished then
      transition.finished_ids[#transition.finished_ids + 1] = '{more}' .. id
      b.member_finished = nil
    end
    writes.set(keys.batches, 'state' .. SEP .. id, cmsgpack.pack({ unpack(b, 1, B_FIELDS) }))
  end
end

-- end_batches(): ends batches, creates the jobs that follow, and stores all touched batches.
function M.end_batches()
  local created_before = create.count
  end_touched()
  save_touched()
  if create.count > created_before then
    writes.set_content(keys.meta, 'accepted', (meta.accepted or 0) + create.count)
    for queue in pairs(create.queues) do call('HSETNX', keys.queues, queue, '') end
  end
end

return M
