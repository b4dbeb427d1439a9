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

-- rouse(worker): it no longer waits for work in any queue.
local function rouse(worker)
  local fine, node = pcall(cmsgpack.unpack, call('HGET', nodes, worker) or '')
  if not fine or type(node) ~= 'table' or type(node[2]) ~= 'table' then node = { '', { '*' } } end
  for _, queue in ipairs(node[2]) do call('ZREM', idle, queue .. SEP .. worker, AT_REST .. worker) end
end

-- depart(worker): forgets a worker for good; its id is refused from now on.
local function depart(worker)
  rouse(worker)
  call('ZADD', retired, now, worker)
  call('ZREM', workers, worker)
  call('HDEL', nodes, worker)
  call('HDEL', calls, worker)
end
