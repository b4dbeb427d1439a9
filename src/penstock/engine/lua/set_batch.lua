-- set_batch: the priority or the limit of a live batch. What its lane shows is shown again, by the other priority; the rest
-- follows when its turn comes.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish
-- args: batch, priority ('' to leave it), limit (-1: as it was opened with, '' to leave it)
-- returns: ok | missing
-- event: set_batch
need_batches()
local kit, priority, limit = batch_kit, tonumber(ARGV[2]), tonumber(ARGV[3])
local b = kit.one(ARGV[1])
if not b then return 'missing' end
need_line()
local name = 'batch:' .. b.id
if limit then
  local paused = tonumber(unpacked(call('HGET', limits, name))[2]) or 0
  if limit < 0 and paused == 0 then erase(limits, name) else set(limits, name, cmsgpack.pack({ limit, paused })) end
  fetch({ name })
  lane_apart(name).set = limit
end
local lane = lane_named(name)
if priority then
  b[B_PRIORITY] = priority
  set(batches, 'state' .. SEP .. b.id, cmsgpack.pack({ unpack(b, 1, B_FIELDS) }))
  for _, row in pairs(lane.lines) do
    local shown = { unpack(row.shown) }
    for i, h in pairs(read(shown)) do
      if h[STATE] == 'ready' and h[PRIORITY] ~= priority then move(nil, shown[i], h, 'ready') end
    end
  end
end
if limit then refill(lane) end
note('set_batch', b.id, kit.subject(b))
finish()
return 'ok'
