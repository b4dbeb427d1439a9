-- transfer: scheduled | held | ready → the same in another queue, in the order in which they had come.
-- flags: allow-oom
-- keys: queues
-- include: record mail header write waiters lanes owners batches move line enter finish
-- args: queue, then the ids
-- returns: per job: ok | missing, or the state that it is in
-- event: transfer
local queue, ids, answers, moved = ARGV[1], {}, {}, false
for at = 2, ARGC do ids[#ids + 1] = ARGV[at] end
local headers = read(ids)
meet(headers, #ids)

-- leave(id, h): it is nowhere for a moment; an ordered lane's turn stays its own.
local function leave(id, h)
  local key, _, member = place(id, h)
  withdraw(key, member)
  if #h[LANES] > 0 then leave_lanes(id, h, h[STATE], member) end
  tally(deltas, h[STATE], h[QUEUE], -1)
  h[QUEUE], h[STATE], lines[id], moved, h.known = queue, '', nil, true, true
end

local function change(id, h)
  local state = h[STATE]
  leave(id, h)
  if state ~= 'scheduled' and #h[LANES] > 0 then
    local at
    at, state = place_in_line(h)
    wait_under(h, at)
  end
  move('transfer', id, h, state)
  h.known = nil
end

for i, id in ipairs(ids) do
  local h = headers[i]
  if not h then
    answers[i] = 'missing'
  elseif not waits(h) then
    answers[i] = h[STATE]
  else
    answers[i] = 'ok'
    if h[QUEUE] ~= queue then change(id, h) end
  end
end
if moved then call('HSETNX', queues, queue, '') end
finish()
return answers
