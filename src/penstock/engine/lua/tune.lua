-- tune: what a lane allows is set by hand, or again as the code says. What waits for it is shown at once if there is room.
-- A lane task:NAME is that of a task: while it is paused, lease holds the jobs of that task in it.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish
-- args: lane, limit (-1: as the code says, '' to leave it), 1 paused or 0 not ('' to leave it)
-- returns: ok
-- event: tune
need_lanes()
need_line()
local name = ARGV[1]
local fixed = unpacked(call('HGET', limits, name))
local limit = tonumber(ARGV[2]) or fixed[1] or -1
local paused = tonumber(ARGV[3]) or fixed[2] or 0
if limit < 0 and paused == 0 then erase(limits, name) else set(limits, name, cmsgpack.pack({ limit, paused })) end
fetch({ name })
local lane = lane_apart(name)
lane.set, lane.paused = limit, paused == 1
refill(lane_named(name))
local task = string.match(name, '^task:(.*)$')
if task then
  local halted = {}
  for other in string.gmatch(call('HGET', meta, 'halted') or '', '[^\31]+') do
    if other ~= task then halted[#halted + 1] = other end
  end
  if paused == 1 then halted[#halted + 1] = task end
  call('HSET', meta, 'halted', table.concat(halted, SEP))
end
groups[1] = { 'tune', '', '', 0, name, {}, 0 }
finish()
return 'ok'
