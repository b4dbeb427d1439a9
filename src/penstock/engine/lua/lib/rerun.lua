-- Running again: a dead or cancelled job goes to the tail of its line, with a fresh budget.

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local lane_entry = require 'lane_entry'
local lanes = require 'lanes'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

local revived

function M.reset()
  revived = {}   -- unique key → the job that has taken it again
end

local function is_free(key, id)
  if key == '' then return true end
  local other = revived[key] or call('HGET', keys.unique, key)
  return not other or other == id
end

-- edit(id, h, payload, other_lanes, key): other arguments, and what follows from them; a member stays in its batch's lane.
local function edit(id, h, payload, other_lanes, key)
  h.payload = payload
  if #payload < INLINE then writes.delete(keys.payloads, id) end
  h[SIZE], h[UNIQUE] = #payload, key or h[UNIQUE]
  if not other_lanes then return end
  if h[TURN] > 0 then lanes.vacate(lanes.of(h[LANES][h[TURN]]), id) end
  h[TURN], h[LANES] = 0, other_lanes
  if h[BATCH] ~= '' then
    batches.apply_to(h)
  end
end

-- rerun(verb, id, h, payload, other_lanes, key) → ok | missing | taken (another job has its unique key), or the state that it
-- is in.
function M.rerun(verb, id, h, payload, other_lanes, key)
  if not h or h[COMPACT] == 1 or not (payload or h.payload or call('HEXISTS', keys.payloads, id) == 1) then
    return h and h[STATE] == 'done' and 'done' or 'missing'
  end
  if h[STATE] ~= 'dead' and h[STATE] ~= 'cancelled' then return h[STATE] end
  if not is_free(key or h[UNIQUE], id) then return 'taken' end
  if payload then edit(id, h, payload, other_lanes, key) end
  if h[STATE] == 'dead' then writes.remove(keys.deaths, transition.death_member(id, h)) end
  h[FAILURES], h[CRASHES], h[STARTS], h[RELEASES], h[CANCELLING] = 0, 0, 0, 0, 0
  h[GENERATION], h[REASON], h[EXPIRES], h[PROGRESS], h[LAST], h[DEATH] = h[GENERATION] + 1, '', 0, '', '', ''
  h[DUE] = math.min(h[DUE], request.now)
  if h[UNIQUE] ~= '' then revived[h[UNIQUE]] = id end
  transition.move_to_tail(id, h)
  lane_entry.line_up(verb, id, h)
  return 'ok'
end

return M
