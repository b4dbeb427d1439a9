-- Tombstones: when a finished job is pruned or discarded, its record keeps its id and how it ended, and loses the rest.
-- So a producer that sends the id again does not start the job again.
--
-- h is the header of a job.

local keys = require 'keys'
local batches = require 'batches'
local counters = require 'counters'
local events = require 'events'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local lanes = require 'lanes'
local transition = require 'transition'
local writes = require 'writes'

local M = {}

-- release_dead(id, h): gives up what a dead job has: its entry in `deaths`, and maybe the turn in an ordered lane.
local function release_dead(id, h)
  if h[TURN] > 0 then
    lane_entry.fetch_lanes({ h }, 1)
    lanes.vacate(lanes.of(h[LANES][h[TURN]]), id)
  end
  writes.remove(keys.deaths, transition.death_member(id, h))
end

-- bury(verb, id, h): this finished job becomes a tombstone.
function M.bury(verb, id, h)
  local index = jobs.index_entry(id, h)
  writes.remove(index, id)
  counters.add_to(counters.count_changes, h[STATE], h[QUEUE], -1)
  if h[STATE] == 'dead' then release_dead(id, h) end
  h[COMPACT], h[LANES], h[HOME], h[TURN], h[PROGRESS], h[UNIQUE], h[DEATH] = 1, {}, 0, 0, '', '', ''
  h.payload = nil
  for _, key in ipairs({ keys.payloads, keys.results, keys.attempts, keys.logs }) do writes.delete(key, id) end
  writes.add(keys.tombs, h[SINCE], id)
  events.add(verb, id, h)
  writes.save(id, h)
end

-- is_needed(h) → is the job a member of a batch that has not ended? Then it stays, at any age and in any number.
function M.is_needed(h)
  if h[BATCH] == '' then return false end
  local batch = batches.of_member(h[BATCH], h[CREATED])
  return batch and batch[B_PHASE] ~= 'ended'
end

return M
