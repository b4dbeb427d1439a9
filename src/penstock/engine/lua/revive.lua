-- revive: dead | cancelled → ready | held, at the tail of its line, with a fresh budget.
-- include: record mail header write waiters lanes owners batches move line enter finish create ends again
-- args: per job its id, and to run it with other arguments its payload and msgpack of [lanes, unique key], '' for the same
-- returns: per job: ok | missing | taken (another job has its unique key), or the state that it is in
-- event: revive
local ids, answers = {}, {}
for at = 1, ARGC, 3 do ids[#ids + 1] = ARGV[at] end
local headers = read(ids)
meet(headers, #ids)

-- changes(i) → its payload, lanes and unique key, if they are other ones.
local function changes(i)
  local payload, packed = ARGV[i * 3 - 1], ARGV[i * 3]
  if payload == '' then return nil end
  local rest = packed ~= '' and cmsgpack.unpack(packed) or {}
  return payload, rest[1], rest[2]
end

for i, id in ipairs(ids) do answers[i] = again('revive', id, headers[i], changes(i)) end
finish()
return answers
