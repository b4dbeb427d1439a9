-- Running again: a dead or cancelled job goes to the tail of its line, with as many retries as a new job.
--
-- h is the header of a job.

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local lane_entry = require 'lane_entry'
local lanes = require 'lanes'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

local retaken

function M.reset()
  retaken = {}   -- unique key → the job that has taken it in this call
end

-- is_free(unique, id) → can this job have this unique key?
local function is_free(unique, id)
  if unique == '' then return true end
  local holder = retaken[unique] or call('HGET', keys.unique, unique)
  return not holder or holder == id
end

-- has_payload(id, h) → is its payload still there?
local function has_payload(id, h) return h.payload or call('HEXISTS', keys.payloads, id) == 1 end

-- change_arguments(id, h, payload, specs, unique): gives the job another payload, and the lanes and the unique key that
-- follow from it, if they are given. A member keeps its batch's lane.
local function change_arguments(id, h, payload, specs, unique)
  h.payload, h[SIZE] = payload, #payload
  if #payload < INLINE then writes.delete(keys.payloads, id) end
  h[UNIQUE] = unique or h[UNIQUE]
  if not specs then return end
  if h[TURN] > 0 then lanes.vacate(lanes.of(h[LANES][h[TURN]]), id) end
  h[TURN], h[LANES] = 0, specs
  if h[BATCH] ~= '' then batches.apply_to(h) end
end

-- forget_attempts(h): the job has no failures and no attempts, as a new job. It does not expire any more.
local function forget_attempts(h)
  h[FAILURES], h[CRASHES], h[STARTS], h[RELEASES], h[CANCELLING] = 0, 0, 0, 0, 0
  h[REASON], h[PROGRESS], h[LAST], h[DEATH] = '', '', '', ''
  h[GENERATION], h[EXPIRES] = h[GENERATION] + 1, 0
  h[DUE] = math.min(h[DUE], request.now)
end

-- rerun(verb, id, h, payload, specs, unique) → ok | missing | taken (another job has its unique key), or its state if
-- the job is neither dead nor cancelled. With a payload it runs with other arguments: see change_arguments().
function M.rerun(verb, id, h, payload, specs, unique)
  if not h then return 'missing' end
  local state = h[STATE]
  if h[COMPACT] == 1 or not (payload or has_payload(id, h)) then return state == 'done' and 'done' or 'missing' end
  if state ~= 'dead' and state ~= 'cancelled' then return state end
  if not is_free(unique or h[UNIQUE], id) then return 'taken' end
  if payload then change_arguments(id, h, payload, specs, unique) end
  if state == 'dead' then writes.remove(keys.deaths, transition.death_member(id, h)) end
  forget_attempts(h)
  if h[UNIQUE] ~= '' then retaken[h[UNIQUE]] = id end
  transition.move_to_tail(id, h)
  lane_entry.line_up(verb, id, h)
  return 'ok'
end

return M
