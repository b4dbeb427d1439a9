-- retire: running → ready | held at the head of the line, for all that a worker holds whose life ends. No attempt used.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create ends settle skills life
-- args: worker, how many jobs at most
-- returns: how many went back, 1 if there are more
-- event: release
local worker = ARGV[1]
local members = held_by(worker, tonumber(ARGV[2]))
local ids = {}
for i, member in ipairs(members) do ids[i] = last_part(member) end
local headers = read(ids)
meet(headers, #ids)
for i, id in ipairs(ids) do
  local h = headers[i]
  if not h or h[STATE] ~= 'running' or h[CLAIM] .. SEP .. id ~= members[i] then
    if h or not unreadable(id, string.sub(members[i], 1, -2 - #id)) then drop(leases, members[i]) end
  elseif h[CANCELLING] == 1 then
    cancelled('release', id, h)
  else
    h[RELEASES] = h[RELEASES] + 1
    line_up('release', id, h)
  end
end
finish()
if #held_by(worker, 1) > 0 then return { #ids, 1 } end
depart(worker)
return { #ids, 0 }
