-- Creation: a job that did not exist enters the line, now or when it is due. `h` is a header.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local batches = require 'batches'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local transition = require 'transition'
local call = request.call

local M = {}

local new_holders

function M.reset()
  M.count = 0           -- how many jobs this call created
  M.queues = {}         -- queue → true: those of these jobs
  M.known_queues = {}   -- queue → its value in `queues`, where that was read; false: its name is new
  new_holders = {}      -- unique key → id of the job with this key, if this call created it
end

-- instant(time) → the same as a time in ms: what is below DELAY_BELOW is a delay from now.
local function instant(time)
  return (time > 0 and time < DELAY_BELOW) and request.now + time or time
end

-- unique_holder(key) → id and header of the unfinished job that has this unique key, if there is one.
function M.unique_holder(key)
  local id = new_holders[key] or call('HGET', keys.unique, key)
  local h = id and jobs.read({ id })[1]
  if h and h[UNIQUE] == key and (jobs.waits(h) or h[STATE] == 'running') then return id, h end
end

-- without_repeats(specs) → these lanes without those that are named a second time.
local function without_repeats(specs)
  local first_specs, seen = {}, {}
  for _, spec in ipairs(specs) do
    local name = record.lane_name(spec)
    if not seen[name] then
      first_specs[#first_specs + 1] = spec
      seen[name] = true
    end
  end
  return first_specs
end

-- create(verb, id, h, payload, note): makes a new job of this header. `verb` and `note` are for the event.
function M.create(verb, id, h, payload, note)
  if #h[LANES] > 1 then h[LANES] = without_repeats(h[LANES]) end
  h[CREATED] = h[BATCH] == '' and request.now or batches.since(h[BATCH])
  h[SIZE] = #payload
  h[DUE] = instant(h[DUE])
  h[EXPIRES] = instant(h[EXPIRES])
  h.payload = payload
  if h[DUE] > request.now then
    transition.move(verb, id, h, 'scheduled', note)
  else
    transition.move_to_tail(id, h)
    lane_entry.line_up(verb, id, h, note)
  end
  jobs.decoded[id] = h
  if h[UNIQUE] ~= '' then new_holders[h[UNIQUE]] = id end
  M.count = M.count + 1
  M.queues[h[QUEUE]] = true
end

return M
