-- tune: what a lane allows is set by hand, or again as the code says. What waits for it is shown at once if there is room.
-- A lane task:NAME is that of a task: while it is paused, lease holds the jobs of that task in it.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: lane, limit (-1: as the code says, '' to leave it), 1 paused or 0 not ('' to leave it)
-- returns: ok
-- event: tune

local request = require 'request'
local keys = require 'keys'
local finish = require 'finish'
local lanes = require 'lanes'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

function M.run()
  local name = request.args[1]
  local fixed = lanes.unpack_list(call('HGET', keys.limits, name))
  local limit = tonumber(request.args[2]) or fixed[1] or -1
  local paused = tonumber(request.args[3]) or fixed[2] or 0
  if limit < 0 and paused == 0 then writes.delete(keys.limits, name) else writes.set(keys.limits, name, cmsgpack.pack({ limit, paused })) end
  lanes.fetch({ name })
  local lane = lanes.decode(name)
  lane.set, lane.paused = limit, paused == 1
  lanes.refill(lanes.named(name))
  local task = string.match(name, '^task:(.*)$')
  if task then
    local halted = {}
    for other in string.gmatch(call('HGET', keys.meta, 'halted') or '', '[^\31]+') do
      if other ~= task then halted[#halted + 1] = other end
    end
    if paused == 1 then halted[#halted + 1] = task end
    call('HSET', keys.meta, 'halted', table.concat(halted, SEP))
  end
  transition.event_groups[1] = { 'tune', '', '', 0, name, {}, 0 }
  finish.write_all()
  return 'ok'
end

return M
