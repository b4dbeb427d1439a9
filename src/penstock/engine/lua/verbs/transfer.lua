-- transfer: scheduled | held | ready → the same in another queue, in the order in which they had come.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: queue, then the ids
-- returns: per job: ok | missing, or the state that it is in
-- event: transfer

local request = require 'request'
local keys = require 'keys'
local counters = require 'counters'
local finish = require 'finish'
local jobs = require 'jobs'
local lane_entry = require 'lane_entry'
local lane_turns = require 'lane_turns'
local lanes = require 'lanes'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

local queue, moved

-- leave(id, h): it is nowhere for a moment; an ordered lane's turn stays its own.
local function leave(id, h)
  local key, _, member = jobs.index_entry(id, h)
  writes.remove_later(key, member)
  if #h[LANES] > 0 then lanes.leave(id, h, h[STATE], member) end
  counters.add_to(counters.count_changes, h[STATE], h[QUEUE], -1)
  h[QUEUE], h[STATE], jobs.ready_members[id], moved, h.known = queue, '', nil, true, true
end

local function change(id, h)
  local state = h[STATE]
  leave(id, h)
  if state ~= 'scheduled' and #h[LANES] > 0 then
    local at
    at, state = lane_turns.place_in_line(h)
    lanes.wait_in(h, at)
  end
  transition.move('transfer', id, h, state)
  h.known = nil
end

function M.run()
  local ids, answers
  queue, ids, answers, moved = request.args[1], {}, {}, false
  for at = 2, request.argc do ids[#ids + 1] = request.args[at] end
  local headers = jobs.read(ids)
  lane_entry.fetch_lanes(headers, #ids)
  for i, id in ipairs(ids) do
    local h = headers[i]
    if not h then
      answers[i] = 'missing'
    elseif not jobs.waits(h) then
      answers[i] = h[STATE]
    else
      answers[i] = 'ok'
      if h[QUEUE] ~= queue then change(id, h) end
    end
  end
  if moved then call('HSETNX', keys.queues, queue, '') end
  finish.write_all()
  return answers
end

return M
