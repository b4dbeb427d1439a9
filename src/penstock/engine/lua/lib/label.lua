-- Labels: most jobs have no header. One without a unique key, an expiry, a due time or an id of somebody's choice, which asks
-- for no lane or for one that is only limited, is stored as what it has in common with others, its label, and what it has not:
-- its lane if there is one, place, time, size and payload (stored.Plain). Enqueue, lease and complete, which every job goes
-- through, put something in front:
--   nothing: it is ready, without a lane
--   LANED, 0, 1 or 2, since, place: its lane holds it, or shows it, or is a lock and the job's own (lib/locks.lua)
--   BEGUN, claim, started, fence: it runs
--   BEGUN_LANED, claim, started, fence, since, place: so does one with a lane
-- and read little more than the label. A number has nine bytes, the size five. Every other verb makes a header of it, and then
-- the payload, too, is where those of other jobs are.

-- lane_name(spec) → the name of the lane that a job asks for. What follows it: limit, rate, burst, kind, cost; of a lock nothing.
local lane_names, lane_kinds = {}, {}
local function lane_name(spec)
  local name = lane_names[spec]
  if name then return name end
  local to = string.find(spec, SEP, 1, true)
  if not to then return spec end
  name = string.sub(spec, 1, to - 1)
  lane_names[spec] = name
  lane_kinds[spec] = string.match(spec, '^[^\31]*\31[^\31]*\31[^\31]*\31[^\31]*\31(%a+)')
  return name
end

local function listed(_, ...) return { ... } end

-- common_of(rest) → the header that these have in common whose labels say this behind the queue.
local commons = {}
local function common_of(rest)
  local common = commons[rest]
  if common then return common end
  local priority, task, keep, retries, batch = string.match(rest, '^(%d*)\31([^\31]+)\31(%d*)\31(%d*)\31?([^\31]*)$')
  if not task then error('no label') end
  common = listed(cmsgpack.unpack_limit(BLANK, FIELDS, 3))
  common[STATE], common[TASK], common[BATCH] = 'ready', task, batch
  if priority ~= '' then common[PRIORITY] = priority + 0 end
  if keep ~= '' then common[KEEP] = keep + 0 end
  if retries ~= '' then common[RETRIES] = retries + 0 end
  common.meta = { __index = common }
  commons[rest] = common
  return common
end

-- kind_of(label) → what jobs with this label have in common, by the places that it has in a header. n of them move in this call,
-- `waited` of these from or to `held`. Where there are many queues each job has a label of its own, so it only has its queue itself,
-- and the rest from what others with the same end have in common.
local kinds = {}
local function kind_of(label)
  local kind = kinds[label]
  if kind then return kind end
  local to = string.find(label, SEP, 1, true) or error('no label')
  local common = common_of(string.sub(label, to + 1))
  kind = { mark = IS_PLAIN .. string.char(#label) .. label, n = 0, waited = 0, group = false, common = common }
  kind[QUEUE] = to > 1 and string.sub(label, 1, to - 1) or common[QUEUE]
  setmetatable(kind, common.meta)
  kinds[label], kinds[#kinds + 1] = kind, kind
  return kind
end

-- text_at(raw, at) → the text that begins there, and where it ends; an error if it is none.
local function text_at(raw, at)
  local mark, length = string.byte(raw, at + 1, at + 2)
  if mark == 217 then return string.sub(raw, at + 3, at + 2 + length), at + 2 + length end
  local to, text = cmsgpack.unpack_limit(raw, 1, at)
  return text .. '', to
end

-- kind_at(raw, at, last) → the kind of the job whose label begins there; most have the same as the last one.
local function kind_at(raw, at, last)
  if last and string.sub(raw, at + 1, at + #last.mark) == last.mark then return last end
  return kind_of((text_at(raw, at)))
end

-- laned_at(raw, at, last) → the same of one with a lane, then where that ends, and what the job says of it. Members of a batch
-- mostly have the same.
local function laned_at(raw, at, last)
  local sub, kind, mark = string.sub, last, last and last.laned_mark
  if mark and sub(raw, at + 1, at + #mark) == mark then return last, at + #mark, last.lane end
  mark = last and last.mark
  if not mark or sub(raw, at + 1, at + #mark) ~= mark then kind = kind_at(raw, at) end
  local spec, to = text_at(raw, at + #kind.mark)
  if kind[BATCH] ~= '' then kind.lane, kind.laned_mark = spec, sub(raw, at + 1, to) end
  return kind, to, spec
end

-- is_inside(raw, at) → is the payload of such a job part of the record, from there on: 196, its length, and it? Otherwise there
-- is 192, and it is under `payloads`. Nothing if the record does not end so.
local function is_inside(raw, at)
  local mark, length = string.byte(raw, at + 1, at + 2)
  if mark == 196 and length and #raw == at + 2 + length then return true end
  if mark == 192 and #raw == at + 1 then return false end
end

-- header_of(kind, spec) → a header for one of them, which has this lane or none.
local function header_of(kind, spec)
  local h = { unpack(kind.common, 1, FIELDS) }
  h[QUEUE] = kind[QUEUE]
  h[STATE], h[LANES], h[HOME] = '', { spec }, spec and 1 or 0
  return h
end

-- labelled(raw, at, state, since, number) → the header of the job whose label begins there; `payload` if that is inside. With a
-- since and a number it has a lane.
local function labelled(raw, at, state, since, number)
  local label, spec, seq, created, size
  at, label = cmsgpack.unpack_limit(raw, 1, at)
  if since then spec, at = text_at(raw, at) end
  at, seq, created, size = cmsgpack.unpack_limit(raw, 3, at)
  local inside, h = is_inside(raw, at), header_of(kind_of(label), spec)
  if inside == nil then error('cut off') end
  h[STATE], h[CREATED], h[SINCE], h[SEQ], h[ARRIVAL], h[SIZE] = state, created, since or created, number or seq, seq, size
  h.payload = inside and string.sub(raw, at + 3) or nil
  return h
end
