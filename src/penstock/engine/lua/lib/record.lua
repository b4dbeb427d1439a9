-- The record of a job, as layout.py declares it: the one place that reads and writes it. What is in capitals is made from that
-- declaration. A header is a record taken apart: a table of FIELDS values in the order of job.Header.
--   decode(raw) reads a record, new_header(form) what a producer sends; encode(h) writes one.
-- The rest is for what every job goes through: enqueue, lease and complete put a record together from parts of the one before.

local request = require 'request'
local layout = require 'layout'
local header_with = layout.header_with

local M = {}

-- What is the same for every call.
local usual = cmsgpack.unpack(BLANK)   -- the header of a job that says nothing
local state_of, letter_of_state, type_of_rare = STATE_OF_LETTER, LETTER_OF_STATE, TYPE_OF_RARE
local no_lanes = {}   -- it stays empty

-- bytes[n] → that byte as text; hex_pairs[n] → its two hexadecimal digits. To look them up takes a fifth of making them.
M.bytes = setmetatable({}, { __index = function(known, n)
  known[n] = string.char(n)
  return known[n]
end })
M.hex_pairs = setmetatable({}, { __index = function(known, n)
  known[n] = string.format('%02x', n)
  return known[n]
end })
local bytes, hex_pairs = M.bytes, M.hex_pairs

-- What calls worked out; it is made anew for each call.
local rank_heads, lane_names, commons, kinds, fence_block, fence_start

function M.reset()
  rank_heads = {}                      -- block of numbers and priority → how their ranks begin
  lane_names, M.lane_kinds = {}, {}    -- what a job says of a lane → the lane's name, and its kind
  commons = {}                         -- label behind the queue → header
  kinds = {}
  M.kinds = kinds                      -- label → kind, and all of them in the order in which they came
  fence_block, fence_start = nil, nil
end

-- rank(priority, number) → a place in line as text, to be sorted by.
local function rank(priority, number) return string.format('%02d%012x', priority, number) end

-- near_rank(priority, number) → the same, of whole numbers from 0 on: of 256 in a row what differs is the last two digits.
function M.near_rank(priority, number)
  if priority > 99 then return rank(priority, number) end   -- somebody else wrote that
  local low = number % 256
  local block = number - low + priority
  local head = rank_heads[block]
  if not head then
    head = string.sub(rank(priority, number), 1, -3)
    rank_heads[block] = head
  end
  return head .. hex_pairs[low]
end

-- lane_name(spec) → the name of the lane that a job asks for. What follows it: limit, rate, burst, kind, cost; of a lock nothing.
function M.lane_name(spec)
  local name = lane_names[spec]
  if name then return name end
  local to = string.find(spec, SEP, 1, true)
  if not to then return spec end
  name = string.sub(spec, 1, to - 1)
  lane_names[spec] = name
  M.lane_kinds[spec] = string.match(spec, '^[^\31]*\31[^\31]*\31[^\31]*\31[^\31]*\31(%a+)')
  return name
end

-- listed(…) → what unpack_limit gives, as a list: without the place where it ended.
local function listed(_, ...) return { ... } end

-- Labels: what many jobs have in common. Those of one kind have the same label.

-- common_of(rest) → the header that these have in common whose labels say this behind the queue.
local function common_of(rest)
  local common = commons[rest]
  if common then return common end
  local priority, task, keep, retries, batch = string.match(rest, '^(%d*)\31([^\31]*)\31(%d*)\31(%d*)\31?([^\31]*)$')
  if not task then error('no label') end
  common = { unpack(usual, 1, FIELDS) }
  common[STATE], common[TASK], common[BATCH] = 'ready', task, batch
  if priority ~= '' then common[PRIORITY] = priority + 0 end
  if keep ~= '' then common[KEEP] = keep + 0 end
  if retries ~= '' then common[RETRIES] = retries + 0 end
  commons[rest] = common
  return common
end

-- kind_of(label) → what jobs with this label have in common, by the places that it has in a header. n of them move in this call,
-- `waited` of these from or to `held`. `form`: that of those which ask for no lane and say nothing rare.
local function kind_of(label)
  local kind = kinds[label]
  if kind then return kind end
  local to = string.find(label, SEP, 1, true) or error('no label')
  kind = {
    label = label, form = struct.pack(FORM_FORMAT, #label, 0, 0) .. label, n = 0, waited = 0, group = false,
    unpack(common_of(string.sub(label, to + 1)), 1, FIELDS)
  }
  if to > 1 then kind[QUEUE] = string.sub(label, 1, to - 1) end
  kinds[label], kinds[#kinds + 1] = kind, kind
  return kind
end

-- known_kind(label) → the same, or nothing if that is no label.
function M.known_kind(label)
  local fine, kind = pcall(kind_of, label)
  return fine and kind or nil
end

-- label_of(h) → the label of such a job.
local function label_of(h)
  local queue, priority, keep, retries, batch = h[QUEUE], h[PRIORITY], h[KEEP], h[RETRIES], h[BATCH]
  return (queue ~= USUAL_QUEUE and queue or '') .. SEP .. (priority ~= USUAL_PRIORITY + 0 and string.format('%02d', priority) or '') .. SEP
    .. h[TASK] .. SEP .. (keep ~= USUAL_KEEP and string.format('%.0f', keep) or '') .. SEP
    .. (retries ~= USUAL_RETRIES and string.format('%.0f', retries) or '') .. (batch ~= '' and SEP .. batch or '')
end

-- Rare fields: a msgpack list of number, value, …, of what is not usual.

-- list_at(raw, at) → how many values the list has that begins there, and where the first one does.
local function list_at(raw, at)
  local n = string.byte(raw, at + 1) - SHORT_LIST
  if n >= 0 and n < 16 then return n, at + 1 end
  if n ~= LONG_LIST - SHORT_LIST then error('no list') end
  return struct.unpack('>I2', raw, at + 2), at + 3
end

-- unknown_in(raw, at, n) → what comes of those that another version knows, as it is stored, and how many values that is.
local function unknown_in(raw, at, n)
  local parts, count = {}, 0
  for _ = 1, n, 2 do
    local value_at, number = cmsgpack.unpack_limit(raw, 1, at)
    local to = cmsgpack.unpack_limit(raw, 1, value_at)
    if to < 0 then to = #raw end
    if number > FIELDS then parts[#parts + 1], count = string.sub(raw, at + 1, to), count + 2 end
    at = to
  end
  return table.concat(parts), count
end

-- read_rare(h, raw, at): what the list says that begins there is so. `unknown`: what only another version knows; it is carried through.
local function read_rare(h, raw, at)
  local n, from, types = string.byte(raw, at + 1) - SHORT_LIST, at + 1, type_of_rare
  if n == 2 then   -- mostly that is all
    local _, field, value = cmsgpack.unpack_limit(raw, 2, from)
    if types[field] == type(value) then
      h[field] = value
      n = 0
    end
  end
  if n > 0 then
    n, from = list_at(raw, at)
    local values = listed(cmsgpack.unpack_limit(raw, n, from))
    for i = 1, n, 2 do
      local field, value = values[i], values[i + 1]
      if types[field] == type(value) then
        h[field] = value
      elseif field <= FIELDS then
        error('no such value')
      elseif not h.unknown then
        h.unknown, h.unknown_values = unknown_in(raw, from, n)
      end
    end
  end
  if h[TURN] > #h[LANES] then error('no such lane') end
  h[STARTS] = h[STARTS] + h[FAILURES] + h[CRASHES] + h[RELEASES]
end

-- rare_of(h, has_lane, excess) → that list; '' if there is nothing to say. has_lane: it waits for one lane alone, which the form tells.
local function rare_of(h, has_lane, excess)
  local rare, n, unknown = {}, 0, h.unknown
  n = layout.add_rare_values(h, rare, n)
  if not has_lane and h[LANES][1] then rare[n + 1], rare[n + 2], n = LANES, h[LANES], n + 2 end
  if h[HOME] ~= (has_lane and 1 or 0) then rare[n + 1], rare[n + 2], n = HOME, h[HOME], n + 2 end
  if not has_lane and h[ARRIVAL] ~= h[SEQ] then rare[n + 1], rare[n + 2], n = ARRIVAL, h[ARRIVAL], n + 2 end
  if excess ~= 0 then rare[n + 1], rare[n + 2], n = STARTS, excess, n + 2 end
  local count = unknown and n + h.unknown_values or n
  if count == 0 then return '' end
  local mark = count < 16 and string.char(SHORT_LIST + count) or struct.pack('>BI2', LONG_LIST, count)
  local packed = mark .. (n > 0 and cmsgpack.pack(unpack(rare, 1, n)) or '') .. (unknown or '')
  if #packed > LONGEST_RARE then error('what is rare of this job is longer than 64 KiB') end
  return packed
end

-- The whole record.

-- carries_payload(state, size, h) → is its payload part of the record?
local function carries_payload(state, size, h) return size < INLINE and state ~= 'done' and h[COMPACT] == 0 end

-- parse(raw) → the header. `kind`; `record`: raw; `to`: where its form ends there; `payload`: true if the payload follows (elsewhere it may
-- be a text: a new one); `is_owner`: it owns its lock, as it is stored; a move does not change that.
function M.parse(raw)
  local sub, numbers = string.sub, struct.unpack
  local letter, flags, run, since = numbers(HEAD_FORMAT, raw)
  local state, at = state_of[letter], HEAD_SIZE + run
  if not state then error('no state') end
  local size, seq, created, label, lane, rare = numbers(BODY_AND_FORM, raw, at + 1)
  local from = at + BODY_SIZE + FORM_SIZE
  local lane_at, to, arrival = from + label, from + label + lane + rare, seq
  local text = sub(raw, from + 1, lane_at)
  local kind, specs, home, started, fence, claim = kinds[text] or kind_of(text), no_lanes, 0, 0, 0, ''
  if lane > 0 then
    specs, home, arrival, to = { sub(raw, lane_at + 1, lane_at + lane) }, 1, numbers(TIME_FORMAT, raw, lane_at + lane + 1), to + ARRIVAL_SIZE
  end
  if run > 0 then
    started, fence = numbers(RUN_FORMAT, raw, RUN_AT)
    claim = sub(raw, CLAIM_AT, at)
  end
  local is_owner, result, cancelling = nil, 0, 0
  if flags > 0 then
    is_owner = flags % RESULT_FLAG >= OWNER_FLAG
    result = math.floor(flags % CANCELLING_FLAG / RESULT_FLAG)
    cancelling = flags >= CANCELLING_FLAG and 1 or 0
  end
  local h = header_with(kind, to, false, raw, state, since, seq, arrival, created, size, specs, home, started, fence, claim,
    result, cancelling, 0)
  if rare > 0 then read_rare(h, raw, to - rare) end
  if state == 'running' or state == 'done' then h[STARTS] = h[STARTS] + 1 end
  local inside = size < INLINE and state ~= 'done' and h[COMPACT] == 0   -- see carries_payload
  if #raw ~= (inside and to + size or to) then error('cut off') end
  h.payload = inside
  if is_owner then h.is_owner = true end
  if size == LOST then h[SIZE] = -1 end
  if state == 'done' and claim ~= '' then   -- complete has left it there
    h[CLAIM], h[LAST], h[REASON] = '', claim .. SEP .. 'complete' .. SEP .. 'ok', ''
  elseif (state == 'held' or (state == 'ready' and h[LANES][1])) and not h[LANES][h[HOME]] then
    error('no home')
  end
  return h
end

-- decode(raw) → the header, or nothing if this is no record.
function M.decode(raw)
  local fine, h = pcall(M.parse, raw)
  return fine and h or nil
end

-- header_for(kind, spec) → the header of a new job of this kind, which asks for this lane or none.
local function header_for(kind, spec)
  return header_with(kind, 0, false, '', '', 0, 0, 0, 0, 0, spec and { spec } or no_lanes, spec and 1 or 0, 0, 0, '', 0, 0, 0)
end

-- form_at(raw, at, more) → of the form that begins there: kind, lane or nothing, where it ends, and how long its rare list is. `more`
-- follows a lane.
local function form_at(raw, at, more)
  local label, lane, rare = struct.unpack(FORM_FORMAT, raw, at + 1)
  local lane_at = at + FORM_SIZE + label
  local to = lane_at + lane + (lane > 0 and more or 0) + rare
  if #raw < to then error('cut off') end
  local kind = kind_of(string.sub(raw, at + FORM_SIZE + 1, lane_at))
  return kind, lane > 0 and string.sub(raw, lane_at + 1, lane_at + lane) or nil, to, rare
end

-- form_in(raw) → the same of a record.
function M.form_in(raw) return form_at(raw, HEAD_SIZE + string.byte(raw, FRONT) + BODY_SIZE, ARRIVAL_SIZE) end

-- header_from(raw, kind, spec, to, rare) → what a form tells, as the header of a new job.
local function header_from(raw, kind, spec, to, rare)
  local h = header_for(kind, spec)
  if rare > 0 then
    read_rare(h, raw, to - rare)
  end
  return h
end

-- new_header(form) → the same of what a producer sends; nothing if it cannot be understood.
function M.new_header(form)
  local fine, h = pcall(function() return header_from(form, form_at(form, 0, 0)) end)
  return fine and h or nil
end

-- encode(h) → the record; a payload that is large is not in it.
function M.encode(h)
  local state, size, payload, specs, run, spec = h[STATE], h[SIZE], h.payload, h[LANES], '', ''
  if payload == true then payload = string.sub(h.record, h.to + 1) end
  if h[FENCE] > 0 or h[STARTED] > 0 or h[CLAIM] ~= '' then run = struct.pack(RUN_FORMAT, h[STARTED], h[FENCE]) .. h[CLAIM] end
  if size < 0 or (carries_payload(state, size, h) and not payload) then size = LOST end
  if #specs == 1 and #specs[1] <= LONGEST_LANE then spec = specs[1] end
  local explained = h[FAILURES] + h[CRASHES] + h[RELEASES] + ((state == 'running' or state == 'done') and 1 or 0)
  local label, rare = label_of(h), rare_of(h, spec ~= '', h[STARTS] - explained)
  return letter_of_state[state] .. string.char(h[RESULT] * RESULT_FLAG + h[CANCELLING] * CANCELLING_FLAG, #run)
    .. struct.pack(TIME_FORMAT, h[SINCE]) .. run .. struct.pack(BODY_FORMAT, size, h[SEQ], h[CREATED])
    .. struct.pack(FORM_FORMAT, #label, #spec, #rare) .. label .. (spec ~= '' and spec .. struct.pack(TIME_FORMAT, h[ARRIVAL]) or '') .. rare .. (carries_payload(state, size, h) and payload or '')
end

-- Parts of it.

-- form_with(label, spec) → the form of a job that says nothing rare.
function M.form_with(label, spec) return struct.pack(FORM_FORMAT, #label, #spec, 0) .. label .. spec end

-- new_record(front, number, form, payload, has_lane) → that of a job that enters the line, or a lane, now, and says nothing rare.
function M.new_record(front, number, form, payload, has_lane)
  local n = #payload
  return front .. struct.pack(SINCE_TO_CREATED, request.now, n, number, request.now) .. form .. (has_lane and struct.pack(TIME_FORMAT, number) or '')
    .. (n < INLINE and payload or '')
end

-- new_records(records, ids, form, before): adds to the arguments of a command what new_record gives of these, which follow
-- the place `before`. From one number to the next most of what is written is the same.
function M.new_records(records, ids, form, before)
  local pack, sub, args = struct.pack, string.sub, request.args
  local start, created = READY_FRONT .. pack(TIME_FORMAT, request.now), pack(TIME_FORMAT, request.now) .. form
  local starts, n = {}, 2   -- by size of the payload, up to the last byte of the place
  for i = 1, #ids do
    local number, payload = before + i, args[i * 3]
    local low, size = number % 256, #payload
    if low == 0 then starts = {} end
    local first = starts[size]
    if not first then
      first = start .. pack(SIZE_FORMAT, size) .. sub(pack(TIME_FORMAT, number), 1, -2)
      starts[size] = first
    end
    n = n + 2
    records[n - 1] = ids[i]
    records[n] = first .. bytes[low] .. created .. (size < INLINE and payload or '')
  end
end

-- running_front(claim) → what a record begins with, up to its time, that was leased so and nothing has happened to since.
local function running_front(claim)
  local run = RUN_SIZE + #claim
  return IS_RUNNING .. '\0' .. bytes[run]
end

-- run_front(claim) → how a record begins that is leased now, up to its fence; that, the claim and the body follow.
function M.run_front(claim)
  local started = struct.pack(TIME_FORMAT, request.now)
  return running_front(claim) .. started .. started
end

-- leased_record(front, fence, claim, raw) → what is stored of a job, once it is leased so. From one fence to the next only the last
-- byte differs.
function M.leased_record(front, fence, claim, raw)
  local low = fence % 256
  if fence_block ~= fence - low then
    fence_block, fence_start = fence - low, string.sub(struct.pack(FENCE_FORMAT, fence), 1, -2)
  end
  return front .. fence_start .. bytes[low] .. claim
    .. string.sub(raw, BODY_AT + string.byte(raw, FRONT))
end

-- shown_record(raw, front, number) → what is stored of a job that its lane held and shows from now on, at that place in line.
function M.shown_record(raw, front, number)
  local run = string.byte(raw, FRONT)
  return string.sub(front, 1, -2) .. string.sub(raw, FRONT, FRONT) .. struct.pack(TIME_FORMAT, request.now)
    .. string.sub(raw, RUN_AT, SEQ_AT - 1 + run) .. struct.pack(TIME_FORMAT, number) .. string.sub(raw, CREATED_AT + run)
end

-- has_rare_fields(raw) → does it say anything rare, as all do that were leased before? Not certain of what is cut off.
function M.has_rare_fields(raw)
  local high, low = string.byte(raw, SHORTEST_RECORD - 1, SHORTEST_RECORD)
  return high ~= 0 or low ~= 0
end

-- payload_fits(left, size) → is what is left of a record behind its form what it must be, if its payload has this size?
function M.payload_fits(left, size) return left == (size < INLINE and size or 0) end

-- claim_in(raw) → the claim of the attempt that runs, as far as that can be told.
function M.claim_in(raw)
  if string.sub(raw, 1, 1) ~= IS_RUNNING or #raw < RUN_AT then return nil end
  return string.sub(raw, CLAIM_AT, HEAD_SIZE + string.byte(raw, FRONT))
end

M.rank = rank
M.kind_of = kind_of
M.header_for = header_for
M.form_at = form_at
M.header_from = header_from
M.running_front = running_front

return M
