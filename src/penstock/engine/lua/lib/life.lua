-- Workers' lives.
-- keys: workers nodes calls retired

-- heard(life): somebody renewed or looked after the others. If nobody had for half a life (the server was stopped, failed
-- over or its clock stepped), no worker could, so none is taken for dead for one life from now. → until when
local function heard(life)
  local found = call('HMGET', meta, 'seen', 'grace')
  local gap, grace = now - tonumber(found[1] or now), tonumber(found[2] or 0)
  if gap > life / 2 or gap < 0 then grace = now + life end
  if grace > now + life then grace = now + life end
  call('HSET', meta, 'seen', now, 'grace', grace)
  return grace
end

-- depart(worker): forgets a worker for good; its id is refused from now on.
local function depart(worker)
  local node = call('HGET', nodes, worker)
  if node then
    local queues_of = cmsgpack.unpack(node)[2]
    for _, queue in ipairs(queues_of) do call('ZREM', idle, queue .. SEP .. worker) end
  end
  call('ZADD', retired, now, worker)
  call('ZREM', workers, worker)
  call('HDEL', nodes, worker)
  call('HDEL', calls, worker)
end

-- held_by(worker, limit) → up to limit members of `leases`.
local function held_by(worker, limit)
  return call('ZRANGE', leases, '[' .. worker .. SEP, '(' .. worker .. AFTER, 'BYLEX', 'LIMIT', 0, limit)
end
