-- tune: sets by hand what a lane allows, or has it allow again what the code says. If it has room now, the next jobs
--    that wait for it are shown. The lane task:NAME is that of a task: while it is paused, lease holds the jobs of
--    that task in it.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues
-- ARGV: lane, limit (-1: as the code says, '' to leave it), 1 paused or 0 not ('' to leave it)
-- returns: ok
-- event: tune

local request = require 'request'
local keys = require 'keys'
local events = require 'events'
local finish = require 'finish'
local lane_limits = require 'lane_limits'
local lanes = require 'lanes'
local call = request.call

local M = {}

-- remember_task(task, is_paused): `meta` names the tasks that are paused, so lease need not look for their lanes.
local function remember_task(task, is_paused)
  local halted = {}
  for other in string.gmatch(call('HGET', keys.meta, 'halted') or '', '[^\31]+') do
    if other ~= task then halted[#halted + 1] = other end
  end
  if is_paused then halted[#halted + 1] = task end
  call('HSET', keys.meta, 'halted', table.concat(halted, SEP))
end

function M.run()
  local name = request.args[1]
  local settings = lanes.unpack_list(call('HGET', keys.limits, name))
  local limit = tonumber(request.args[2]) or settings[1] or -1
  local paused = tonumber(request.args[3]) or settings[2] or 0
  lane_limits.store_settings(name, limit, paused)
  lanes.fetch({ name })
  local lane = lanes.decode(name)
  lane.set, lane.paused = limit, paused == 1
  lanes.refill(lanes.named(name))
  local task = string.match(name, '^task:(.*)$')
  if task then remember_task(task, paused == 1) end
  events.add_plain('tune', '', name)
  finish.write_all()
  return 'ok'
end

return M
