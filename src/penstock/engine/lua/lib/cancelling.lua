-- Cancelling: a job that waits ends at once. A running job is flagged, and its worker gets a message.
--
-- h is the header of a job.

local keys = require 'keys'
local events = require 'events'
local finish = require 'finish'
local jobs = require 'jobs'
local messages = require 'messages'
local transition = require 'transition'
local writes = require 'writes'

local M = {}

local unsent

function M.reset()
  unsent = {}   -- list of { worker, id of its job }: messages that are sent when everything is written
end

-- flag(verb, id, h, reason): asks the worker that runs this job to cancel it.
local function flag(verb, id, h, reason)
  local worker = string.match(h[CLAIM], '^[^\31]*')
  h[CANCELLING], h[REASON] = 1, reason
  writes.add(keys.cancels, 0, worker .. SEP .. id)
  writes.save(id, h)
  events.add(verb, id, h, 'cancelling')
  unsent[#unsent + 1] = { worker, id }
end

-- cancel(verb, id, h, reason) → cancelled | cancelling | missing, or the state in which it had finished before.
function M.cancel(verb, id, h, reason)
  if not h then return 'missing' end
  if jobs.waits(h) then
    h[REASON] = reason
    transition.move(verb, id, h, 'cancelled', reason)
    return 'cancelled'
  end
  if h[STATE] ~= 'running' then return h[STATE] end
  if h[CANCELLING] == 0 then flag(verb, id, h, reason) end
  return 'cancelling'
end

-- finish(): writes everything, then sends the messages to the workers.
function M.finish()
  finish.write_all()
  for _, message in ipairs(unsent) do messages.send('to:' .. message[1], 'cancel ' .. message[2]) end
end

return M
