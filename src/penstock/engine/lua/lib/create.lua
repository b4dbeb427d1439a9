-- Creation: a job that did not exist enters the line, now or later.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local batches = require 'batches'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local transition = require 'transition'
local call = request.call

local M = {}

local claimed

function M.reset()
  M.count = 0   -- jobs made in this call
  M.queues = {}   -- queues that they are in
  M.known_queues = {}   -- those of them that were there before
  claimed = {}   -- unique key → the one of them that has it
end

-- instant(at) → a time; small numbers are delays from now.
local function instant(at)
  return (at > 0 and at < DELAY_BELOW) and request.now + at or at
end

-- unique_holder(key) → id and header of the unfinished job that has this unique key.
function M.unique_holder(key)
  local id = claimed[key] or call('HGET', keys.unique, key)
  local h = id and jobs.read({ id })[1]
  if h and h[UNIQUE] == key and (jobs.waits(h) or h[STATE] == 'running') then return id, h end
end

-- once_each(specs) → a lane that is named twice is asked for once.
local function once_each(specs)
  local found, seen = {}, {}
  for _, spec in ipairs(specs) do
    local name = record.lane_name(spec)
    if not seen[name] then found[#found + 1], seen[name] = spec, true end
  end
  return found
end

-- create(verb, id, h, payload, text): the job is there from now on.
function M.create(verb, id, h, payload, text)
  if #h[LANES] > 1 then h[LANES] = once_each(h[LANES]) end
  h[CREATED], h[SIZE] = h[BATCH] == '' and request.now or batches.since(h[BATCH]), #payload
  h[DUE], h[EXPIRES] = instant(h[DUE]), instant(h[EXPIRES])
  h.payload = payload
  if h[DUE] > request.now then
    transition.move(verb, id, h, 'scheduled', text)
  else
    transition.move_to_tail(id, h)
    lane_entry.line_up(verb, id, h, text)
  end
  jobs.decoded[id] = h
  if h[UNIQUE] ~= '' then claimed[h[UNIQUE]] = id end
  M.count, M.queues[h[QUEUE]] = M.count + 1, true
end

return M
