-- Cancelling: a job that waits ends at once; one that runs is flagged and its worker told.

local keys = require 'keys'
local finish = require 'finish'
local jobs = require 'jobs'
local messages = require 'messages'
local transition = require 'transition'
local writes = require 'writes'

local M = {}

local letters

function M.reset()
  letters = {}   -- to workers, sent when everything is written
end

-- cancel(verb, id, h, reason) → cancelled | cancelling | missing, or the state it had already ended in.
function M.cancel(verb, id, h, reason)
  if not h then return 'missing' end
  if jobs.waits(h) then
    h[REASON] = reason
    transition.move(verb, id, h, 'cancelled', reason)
    return 'cancelled'
  end
  if h[STATE] ~= 'running' then return h[STATE] end
  if h[CANCELLING] == 0 then
    local worker = string.match(h[CLAIM], '^[^\31]*')
    h[CANCELLING], h[REASON] = 1, reason
    writes.add(keys.cancels, 0, worker .. SEP .. id)
    writes.save(id, h)
    transition.add_event(verb, id, h, 'cancelling')
    letters[#letters + 1] = { 'to:' .. worker, 'cancel ' .. id }
  end
  return 'cancelling'
end

-- finish(): everything is written, and the workers are told.
function M.finish()
  finish.write_all()
  for _, letter in ipairs(letters) do messages.send(letter[1], letter[2]) end
end

return M
