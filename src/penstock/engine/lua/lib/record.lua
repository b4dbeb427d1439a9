-- The record of a job: the only module that reads and writes it. engine/record/layout.py declares its sections HEAD,
-- RUN, BODY and FORM, and the constants here are made from that. A header `h` is a record taken apart: a list of
-- FIELDS values, in the order of `Header` in model/header.py. decode(raw) reads a record, encode(h) writes one,
-- new_header(form) reads what a producer sends. The other functions are for what every job goes through: enqueue,
-- lease and complete put a record together from parts of the record before, without taking it apart.

local request = require 'request'
local layout = require 'layout'
local header_with = layout.header_with

local M = {}

-- What is the same for every call.
local defaults = cmsgpack.unpack(BLANK)   -- the header of a job with nothing but defaults
local state_of_letter, letter_of_state, type_of_rare = STATE_OF_LETTER, LETTER_OF_STATE, TYPE_OF_RARE
local no_lanes = {}   -- nobody adds to it

-- bytes[n] → this byte as text; hex_pairs[n] → its two hexadecimal digits. A look into a table takes a fifth of
-- making them.
M.bytes = setmetatable({}, { __index = function(known, n)
  known[n] = string.char(n)
  return known[n]
end })
M.hex_pairs = setmetatable({}, { __index = function(known, n)
  known[n] = string.format('%02x', n)
  return known[n]
end })
local bytes, hex_pairs = M.bytes, M.hex_pairs

-- What one call found out, so that it does not do so again for the next job.
local rank_starts, lane_names, label_fields, kinds, fence_block, fence_start

function M.reset()
  rank_starts = {}    -- the first of 256 places, plus the priority → how their ranks begin
  lane_names = {}     -- spec of a lane → its name
  M.lane_kinds = {}   -- spec of a lane → `ordered` or `hold`, if the lane keeps the order
  label_fields = {}   -- what a label says after the queue → header
  kinds = {}          -- label → kind; also all kinds in the order in which they were found
  M.kinds = kinds
  fence_block = nil   -- the first of the 256 fences that have the same first bytes as the last one,
  fence_start = nil   -- and these bytes
end

-- rank(priority, number) → the place in line as text, by which it is sorted.
local function rank(priority, number) return string.format('%02d%012x', priority, number) end

-- near_rank(priority, number) → the same, faster for places that follow each other: mostly only two digits differ.
function M.near_rank(priority, number)
  if priority > 99 then return rank(priority, number) end   -- not written by these scripts
  local low = number % 256
  local block = number - low + priority
  local start = rank_starts[block]
  if not start then
    start = string.sub(rank(priority, number), 1, -3)
    rank_starts[block] = start
  end
  return start .. hex_pairs[low]
end

-- lane_name(spec) → the name of a lane. Spec is what a job says of it: name, limit, rate, burst, kind and cost, each
-- after a separator; of a lock only the name.
function M.lane_name(spec)
  local name = lane_names[spec]
  if name then return name end
  local separator_at = string.find(spec, SEP, 1, true)
  if not separator_at then return spec end
  name = string.sub(spec, 1, separator_at - 1)
  lane_names[spec] = name
  M.lane_kinds[spec] = string.match(spec, '^[^\31]*\31[^\31]*\31[^\31]*\31[^\31]*\31(%a+)')
  return name
end

-- The label: queue, priority, task, keep, retries and, if there is one, the batch. A default is left out; its
-- separator stays.

-- fields_of(after_queue) → a header with what a label says after the queue, and defaults.
local function fields_of(after_queue)
  local fields = label_fields[after_queue]
  if fields then return fields end
  local priority, task, keep, retries, batch =
    string.match(after_queue, '^(%d*)\31([^\31]*)\31(%d*)\31(%d*)\31?([^\31]*)$')
  if not task then error('no label') end
  fields = { unpack(defaults, 1, FIELDS) }
  fields[STATE] = 'ready'
  fields[TASK] = task
  fields[BATCH] = batch
  if priority ~= '' then fields[PRIORITY] = priority + 0 end
  if keep ~= '' then fields[KEEP] = keep + 0 end
  if retries ~= '' then fields[RETRIES] = retries + 0 end
  label_fields[after_queue] = fields
  return fields
end

-- kind_of(label) → the kind of the jobs with this label: a header with what they have in common. Beside its fields
-- it has these, of which the last four are for the call that runs:
--   label
--   form     of those jobs that have neither a lane nor rare fields
--   n        how many of them move without headers (lib/grouped_moves.lua)
--   waited   how many of these enter or leave `held`
--   group    their part of the event
--   shown    how many leave `held` because their lane shows them (lib/lane_turns.lua, lib/locks.lua)
local function kind_of(label)
  local kind = kinds[label]
  if kind then return kind end
  local separator_at = string.find(label, SEP, 1, true) or error('no label')
  kind = {
    label = label,
    form = struct.pack(FORM_FORMAT, #label, 0, 0) .. label,
    n = 0,
    waited = 0,
    group = false,
    unpack(fields_of(string.sub(label, separator_at + 1)), 1, FIELDS)
  }
  if separator_at > 1 then kind[QUEUE] = string.sub(label, 1, separator_at - 1) end
  kinds[label] = kind
  kinds[#kinds + 1] = kind
  return kind
end

-- known_kind(label) → the same, or nothing if this is no label.
function M.known_kind(label)
  local is_label, kind = pcall(kind_of, label)
  return is_label and kind or nil
end

-- label_of(h) → the label of this job.
local function label_of(h)
  local queue, priority, keep, retries, batch = h[QUEUE], h[PRIORITY], h[KEEP], h[RETRIES], h[BATCH]
  return (queue ~= USUAL_QUEUE and queue or '') .. SEP
    .. (priority ~= USUAL_PRIORITY + 0 and string.format('%02d', priority) or '') .. SEP
    .. h[TASK] .. SEP
    .. (keep ~= USUAL_KEEP and string.format('%.0f', keep) or '') .. SEP
    .. (retries ~= USUAL_RETRIES and string.format('%.0f', retries) or '')
    .. (batch ~= '' and SEP .. batch or '')
end

-- Rare fields: a msgpack list of number, value, … with only what differs from the default. An offset is how many
-- bytes come before, as cmsgpack counts.

-- values_only(…) → what unpack_limit gives, as a list; without the offset where it ended, which comes first.
local function values_only(_, ...) return { ... } end

-- list_at(raw, offset) → how many values the list there has, and the offset of the first one.
local function list_at(raw, offset)
  local n = string.byte(raw, offset + 1) - SHORT_LIST
  if n >= 0 and n < 16 then return n, offset + 1 end
  if n ~= LONG_LIST - SHORT_LIST then error('no list') end
  return struct.unpack('>I2', raw, offset + 2), offset + 3
end

-- unknown_in(raw, offset, n) → of these n numbers and values: those of fields that only another version knows, as
-- they are stored, and how many they are.
local function unknown_in(raw, offset, n)
  local parts, n_unknown = {}, 0
  for _ = 1, n, 2 do
    local value_offset, number = cmsgpack.unpack_limit(raw, 1, offset)
    local next_offset = cmsgpack.unpack_limit(raw, 1, value_offset)
    if next_offset < 0 then next_offset = #raw end   -- this was the end
    if number > FIELDS then
      parts[#parts + 1] = string.sub(raw, offset + 1, next_offset)
      n_unknown = n_unknown + 2
    end
    offset = next_offset
  end
  return table.concat(parts), n_unknown
end

-- read_rare(h, raw, offset): reads the list there into the header. Fields that only another version knows are kept in
-- `h.unknown`, so that encode() writes them again.
local function read_rare(h, raw, offset)
  local n, first, types = string.byte(raw, offset + 1) - SHORT_LIST, offset + 1, type_of_rare
  if n == 2 then   -- mostly there is one field
    local _, field, value = cmsgpack.unpack_limit(raw, 2, first)
    if types[field] == type(value) then
      h[field] = value
      n = 0
    end
  end
  if n > 0 then
    n, first = list_at(raw, offset)
    local values = values_only(cmsgpack.unpack_limit(raw, n, first))
    for i = 1, n, 2 do
      local field, value = values[i], values[i + 1]
      if types[field] == type(value) then
        h[field] = value
      elseif field <= FIELDS then
        error('no such value')
      elseif not h.unknown then
        h.unknown, h.unknown_values = unknown_in(raw, first, n)
      end
    end
  end
  if h[TURN] > #h[LANES] then error('no such lane') end
  h[STARTS] = h[STARTS] + h[FAILURES] + h[CRASHES] + h[RELEASES]
end

-- rare_of(h, has_lane, extra_starts) → the list; '' if it would be empty. has_lane: the only lane of the job is
-- stored before the list, and its arrival. extra_starts: how many more there were than the other counts explain.
local function rare_of(h, has_lane, extra_starts)
  local rare, n, unknown = {}, 0, h.unknown
  n = layout.add_rare_values(h, rare, n)
  if not has_lane and h[LANES][1] then
    rare[n + 1], rare[n + 2] = LANES, h[LANES]
    n = n + 2
  end
  if h[HOME] ~= (has_lane and 1 or 0) then
    rare[n + 1], rare[n + 2] = HOME, h[HOME]
    n = n + 2
  end
  if not has_lane and h[ARRIVAL] ~= h[SEQ] then
    rare[n + 1], rare[n + 2] = ARRIVAL, h[ARRIVAL]
    n = n + 2
  end
  if extra_starts ~= 0 then
    rare[n + 1], rare[n + 2] = STARTS, extra_starts
    n = n + 2
  end
  local n_values = unknown and n + h.unknown_values or n
  if n_values == 0 then return '' end
  local mark = n_values < 16 and string.char(SHORT_LIST + n_values) or struct.pack('>BI2', LONG_LIST, n_values)
  local packed = mark .. (n > 0 and cmsgpack.pack(unpack(rare, 1, n)) or '') .. (unknown or '')
  if #packed > LONGEST_RARE then error('the rare fields of this job are longer than 64 KiB') end
  return packed
end

-- The whole record.

-- carries_payload(state, size, h) → is the payload part of the record?
local function carries_payload(state, size, h) return size < INLINE and state ~= 'done' and h[COMPACT] == 0 end

-- parse(raw) → the header; an error if this is no record. It is one long function because most jobs go through it.
-- Beside its fields a header has:
--   kind       see kind_of
--   record     raw
--   to         where the form ends there
--   payload    true if the payload follows, false if it is elsewhere; of a new job it is the text
--   is_owner   true if the job owns its lock, as far as is stored: moving the job does not change it
function M.parse(raw)
  local sub, numbers = string.sub, struct.unpack
  local letter, flags, run_size, since = numbers(HEAD_FORMAT, raw)
  local state, run_end = state_of_letter[letter], HEAD_SIZE + run_size
  if not state then error('no state') end
  local size, seq, created, label_size, lane_size, rare_size = numbers(BODY_AND_FORM, raw, run_end + 1)
  local lengths_end = run_end + BODY_SIZE + FORM_SIZE
  local label_end = lengths_end + label_size
  local form_end = label_end + lane_size + rare_size
  local label = sub(raw, lengths_end + 1, label_end)
  local kind = kinds[label] or kind_of(label)
  local specs, home, arrival = no_lanes, 0, seq
  if lane_size > 0 then
    local lane_end = label_end + lane_size
    specs = { sub(raw, label_end + 1, lane_end) }
    home = 1
    arrival = numbers(TIME_FORMAT, raw, lane_end + 1)
    form_end = form_end + ARRIVAL_SIZE
  end
  local started, fence, claim = 0, 0, ''
  if run_size > 0 then
    started, fence = numbers(RUN_FORMAT, raw, RUN_AT)
    claim = sub(raw, CLAIM_AT, run_end)
  end
  local is_owner, result, cancelling = nil, 0, 0
  if flags > 0 then
    is_owner = flags % RESULT_FLAG >= OWNER_FLAG
    result = math.floor(flags % CANCELLING_FLAG / RESULT_FLAG)
    cancelling = flags >= CANCELLING_FLAG and 1 or 0
  end
  local h = header_with(kind, form_end, false, raw, state, since, seq, arrival, created, size, specs, home, started,
    fence, claim, result, cancelling, 0)
  if rare_size > 0 then read_rare(h, raw, form_end - rare_size) end
  if state == 'running' or state == 'done' then h[STARTS] = h[STARTS] + 1 end
  local is_inside = size < INLINE and state ~= 'done' and h[COMPACT] == 0   -- carries_payload(), written out
  if #raw ~= (is_inside and form_end + size or form_end) then error('cut off') end
  h.payload = is_inside
  if is_owner then h.is_owner = true end
  if size == LOST then h[SIZE] = -1 end
  if state == 'done' and claim ~= '' then   -- complete left it there
    h[CLAIM], h[LAST], h[REASON] = '', claim .. SEP .. 'complete' .. SEP .. 'ok', ''
  elseif (state == 'held' or (state == 'ready' and h[LANES][1])) and not h[LANES][h[HOME]] then
    error('no home')
  end
  return h
end

-- decode(raw) → the header; nothing if this is no record.
function M.decode(raw)
  local is_record, h = pcall(M.parse, raw)
  return is_record and h or nil
end

-- header_for(kind, spec) → the header of a new job of this kind, with this lane or, without a spec, none.
local function header_for(kind, spec)
  local specs, home = no_lanes, 0
  if spec then specs, home = { spec }, 1 end
  return header_with(kind, 0, false, '', '', 0, 0, 0, 0, 0, specs, home, 0, 0, '', 0, 0, 0)
end

-- form_at(raw, offset, arrival_size) → of the form there: the kind, the spec of the lane or nothing, where it ends,
-- and the length of its rare list. What a producer sends has no arrival after the lane; a record has one.
local function form_at(raw, offset, arrival_size)
  local label_size, lane_size, rare_size = struct.unpack(FORM_FORMAT, raw, offset + 1)
  local label_end = offset + FORM_SIZE + label_size
  local form_end = label_end + lane_size + (lane_size > 0 and arrival_size or 0) + rare_size
  if #raw < form_end then error('cut off') end
  local kind = kind_of(string.sub(raw, offset + FORM_SIZE + 1, label_end))
  local spec = lane_size > 0 and string.sub(raw, label_end + 1, label_end + lane_size) or nil
  return kind, spec, form_end, rare_size
end

-- form_in(raw) → the same of the form in a record.
function M.form_in(raw) return form_at(raw, HEAD_SIZE + string.byte(raw, FRONT) + BODY_SIZE, ARRIVAL_SIZE) end

-- header_from(raw, kind, spec, form_end, rare_size) → the header of a new job with this form, as form_at() read it.
local function header_from(raw, kind, spec, form_end, rare_size)
  local h = header_for(kind, spec)
  if rare_size > 0 then read_rare(h, raw, form_end - rare_size) end
  return h
end

-- new_header(form) → the header of a new job from what its producer sent; nothing if it cannot be read.
function M.new_header(form)
  local is_form, h = pcall(function() return header_from(form, form_at(form, 0, 0)) end)
  return is_form and h or nil
end

-- encode(h) → the record. A large payload is not part of it.
function M.encode(h)
  local state, size, payload, specs = h[STATE], h[SIZE], h.payload, h[LANES]
  if payload == true then payload = string.sub(h.record, h.to + 1) end
  local run, spec, arrival, inside = '', '', '', ''
  if h[FENCE] > 0 or h[STARTED] > 0 or h[CLAIM] ~= '' then
    run = struct.pack(RUN_FORMAT, h[STARTED], h[FENCE]) .. h[CLAIM]
  end
  if size < 0 then
    size = LOST
  elseif carries_payload(state, size, h) then
    if payload then inside = payload else size = LOST end
  end
  if #specs == 1 and #specs[1] <= LONGEST_LANE then
    spec = specs[1]
    arrival = struct.pack(TIME_FORMAT, h[ARRIVAL])
  end
  local explained_starts = h[FAILURES] + h[CRASHES] + h[RELEASES] + ((state == 'running' or state == 'done') and 1 or 0)
  local rare = rare_of(h, spec ~= '', h[STARTS] - explained_starts)
  local label = label_of(h)
  local flags = h[RESULT] * RESULT_FLAG + h[CANCELLING] * CANCELLING_FLAG
  return letter_of_state[state] .. string.char(flags, #run) .. struct.pack(TIME_FORMAT, h[SINCE]) .. run
    .. struct.pack(BODY_FORMAT, size, h[SEQ], h[CREATED])
    .. struct.pack(FORM_FORMAT, #label, #spec, #rare) .. label .. spec .. arrival .. rare .. inside
end

-- Parts of a record. Its front is HEAD without `since`: state, flags and length of RUN.

-- form_with(label, spec) → the form of a job with this lane and no rare field.
function M.form_with(label, spec) return struct.pack(FORM_FORMAT, #label, #spec, 0) .. label .. spec end

-- new_record(front, number, form, payload, has_lane) → the record of a new job without rare fields, which enters the
-- line, or its lane, now and in this place.
function M.new_record(front, number, form, payload, has_lane)
  local size = #payload
  return front .. struct.pack(SINCE_TO_CREATED, request.now, size, number, request.now) .. form
    .. (has_lane and struct.pack(TIME_FORMAT, number) or '') .. (size < INLINE and payload or '')
end

-- new_records(command, ids, form, before): appends id and new_record() of each of these jobs to a command that has
-- only its name and key so far. The jobs have no lane, and the places in line after `before`. From one place to the
-- next mostly only the last byte differs.
function M.new_records(command, ids, form, before)
  local pack, sub, args = struct.pack, string.sub, request.args
  local now = pack(TIME_FORMAT, request.now)
  local front_and_since, created_and_form = READY_FRONT .. now, now .. form
  local starts = {}   -- size of the payload → the record up to the last byte of the place
  local n = 2
  for i = 1, #ids do
    local number, payload = before + i, args[i * 3]
    local low, size = number % 256, #payload
    if low == 0 then starts = {} end
    local start = starts[size]
    if not start then
      start = front_and_since .. pack(SIZE_FORMAT, size) .. sub(pack(TIME_FORMAT, number), 1, -2)
      starts[size] = start
    end
    n = n + 2
    command[n - 1] = ids[i]
    command[n] = start .. bytes[low] .. created_and_form .. (size < INLINE and payload or '')
  end
end

-- running_front(claim) → the front of a record as the lease with this claim left it.
local function running_front(claim)
  return IS_RUNNING .. '\0' .. bytes[RUN_SIZE + #claim]
end

-- run_front(claim) → how the record of a job that is leased now begins. Then come fence, claim and BODY.
function M.run_front(claim)
  local now = struct.pack(TIME_FORMAT, request.now)
  return running_front(claim) .. now .. now
end

-- leased_record(run_front, fence, claim, raw) → the record of a job that is leased now; raw is the record before.
-- From one fence to the next mostly only the last byte differs.
function M.leased_record(run_front, fence, claim, raw)
  local low = fence % 256
  if fence_block ~= fence - low then
    fence_block = fence - low
    fence_start = string.sub(struct.pack(FENCE_FORMAT, fence), 1, -2)
  end
  return run_front .. fence_start .. bytes[low] .. claim
    .. string.sub(raw, BODY_AT + string.byte(raw, FRONT))
end

-- shown_record(raw, front, number) → the record of a job that was held by its lane, and is ready from now on with
-- this place in line.
function M.shown_record(raw, front, number)
  local run_size = string.byte(raw, FRONT)
  return string.sub(front, 1, -2) .. string.sub(raw, FRONT, FRONT) .. struct.pack(TIME_FORMAT, request.now)
    .. string.sub(raw, RUN_AT, SEQ_AT - 1 + run_size) .. struct.pack(TIME_FORMAT, number)
    .. string.sub(raw, CREATED_AT + run_size)
end

-- has_rare_fields(raw) → does this record of a job that waits have rare fields? It is true of every job that was
-- leased before. Of a record that is cut off the answer may be wrong.
function M.has_rare_fields(raw)
  local high, low = string.byte(raw, SHORTEST_RECORD - 1, SHORTEST_RECORD)
  return high ~= 0 or low ~= 0
end

-- payload_fits(left, size) → is this how many bytes must follow the form, if the payload has this size?
function M.payload_fits(left, size) return left == (size < INLINE and size or 0) end

-- claim_in(raw) → the claim of the running attempt; nothing if the job does not run, or the record is cut off.
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
