-- The end of a record: of a finished job only its identity and outcome are kept.

local keys = require 'keys'
local batches = require 'batches'
local counters = require 'counters'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local lanes = require 'lanes'
local transition = require 'transition'
local writes = require 'writes'

local M = {}

function M.bury(verb, id, h)
  writes.remove((jobs.index_entry(id, h)), id)
  counters.add_to(counters.count_changes, h[STATE], h[QUEUE], -1)
  if h[TURN] > 0 and h[STATE] == 'dead' then
    lane_entry.fetch_lanes({ h }, 1)
    lanes.vacate(lanes.of(h[LANES][h[TURN]]), id)
  end
  if h[STATE] == 'dead' then writes.remove(keys.deaths, transition.death_member(id, h)) end
  h[COMPACT], h[LANES], h[HOME], h[TURN], h[PROGRESS], h[UNIQUE], h[DEATH] = 1, {}, 0, 0, '', '', ''
  writes.add(keys.tombs, h[SINCE], id)
  for _, key in ipairs({ keys.payloads, keys.results, keys.attempts, keys.logs }) do writes.delete(key, id) end
  h.payload = nil
  transition.add_event(verb, id, h)
  writes.save(id, h)
end

-- is_needed(h) → is it a member of a batch that has not ended? Then it stays, whatever its age and their number.
function M.is_needed(h)
  if h[BATCH] == '' then return false end
  local b = batches.of_member(h[BATCH], h[CREATED])
  return b and b[B_PHASE] ~= 'ended'
end

return M
