-- The texts that plain jobs (lib/enqueue_plain.lua) are written with, and that are mostly the same as in the previous
-- call. A server that keeps functions keeps them from call to call. None of them was read from the server. A call may
-- be killed between any two statements, so the value that says that others are valid is set last.

local request = require 'request'
local record = require 'record'
local hex_pairs = record.hex_pairs

local M = {}

-- First bytes of values in msgpack.
local LIST_OF_1, LIST_OF_2, LIST_OF_6 = '\145', '\146', '\150'
local SHORT_TEXT = 160     -- plus the length, which is below 32
local WHOLE_NUMBER = 207   -- of 8 bytes, which follow

local MAX_LABELS = 256

local labels, n_labels = {}, 0    -- form → label, and how many there are
local packed_now, packed_for      -- a time in msgpack, and which time that is
local place_digits, first_place   -- all digits of a place but the last two, and the first place that has them

-- lines_begin(verb, queue, task, attempt) → a line of an event in msgpack, up to the ids: verb, queue, task, attempt
-- and an empty note.
local function lines_begin(verb, queue, task, attempt)
  return LIST_OF_6 .. cmsgpack.pack(verb, queue, task, attempt, '')
end

-- label_in(form) → what follows from the label in this form; nothing if there is a lane, a batch or a rare field.
--   queue, task
--   line_start                    how their members of `ready` begin: queue SEP priority; meta.headed is the same
--   line_score                    the score in `heads` of the first place in that line
--   enqueue_event, lease_event    the line of an event for each of these verbs, up to the ids
--   minute                        the minute that the next two are for: its first ms
--   stats_prefix, enqueue_field   how fields of `stats` begin for the queue, and the field that counts enqueue
function M.label_in(form)
  local label = labels[form]
  if label then return label end
  local _, lane_size, rare_size = struct.unpack(FORM_FORMAT, form)
  if lane_size + rare_size > 0 then return nil end
  local queue, priority, task =
    string.match(string.sub(form, FORM_SIZE + 1), '^([^\31]*)\31(%d*)\31([^\31]+)\31%d*\31%d*$')
  if not task then return nil end
  if queue == '' then queue = USUAL_QUEUE end
  if priority == '' then priority = USUAL_PRIORITY end
  label = {
    queue = queue,
    task = task,
    line_start = queue .. SEP .. string.format('%02d', priority),
    line_score = priority * HEAD_STEP,
    enqueue_event = lines_begin('enqueue', queue, task, 0),
    lease_event = lines_begin('lease', queue, task, 1),
  }
  n_labels = n_labels + 1
  if n_labels > MAX_LABELS then labels, n_labels = {}, 1 end
  labels[form] = label
  return label
end

-- minute_prefix(label) → how fields of `stats` begin for the label's queue in this minute.
function M.minute_prefix(label)
  local minute = request.now - request.now % 60000
  if label.minute ~= minute then
    label.stats_prefix = minute / 60000 .. SEP .. label.queue .. SEP
    label.enqueue_field = label.stats_prefix .. 'enqueue'
    label.minute = minute
  end
  return label.stats_prefix
end

-- packed_time() → the time of this call in msgpack.
local function packed_time()
  if packed_for ~= request.now then
    packed_now = struct.pack('>BI8', WHOLE_NUMBER, request.now)
    packed_for = request.now
  end
  return packed_now
end

-- event_entry(n, lines) → an event of n lines (one or two) as it is stored: the time, and the lines.
function M.event_entry(n, lines)
  return LIST_OF_2 .. packed_time() .. (n == 1 and LIST_OF_1 or LIST_OF_2) .. lines
end

-- packed_text(text) → the text in msgpack. Most are short, and are written here.
function M.packed_text(text)
  return #text < 32 and string.char(SHORT_TEXT + #text) .. text or cmsgpack.pack(text)
end

-- ready_member(line_start, number, id) → the member of `ready` of a job in this place of the line.
function M.ready_member(line_start, number, id)
  local low = number % 256
  if first_place ~= number - low then
    place_digits = string.format('%010x', (number - low) / 256)
    first_place = number - low
  end
  return line_start .. place_digits .. hex_pairs[low] .. SEP .. id
end

return M
