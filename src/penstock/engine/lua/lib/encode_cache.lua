-- What a call leaves for the next, where its script is kept as a function: how labels and numbers are written, which mostly are
-- those of the call before. Never anything that is stored. What tells that it is known is set last: a call may be killed.

local request = require 'request'
local record = require 'record'
local hex_pairs = record.hex_pairs

local M = {}

local labels = {}   -- kept: form → what it says, of up to 256
local near = {}   -- kept: how the last numbers were written

-- lines_begin(verb, queue, task, attempt) → how a line of an event begins; ids follow.
local function lines_begin(verb, queue, task, attempt) return '\150' .. cmsgpack.pack(verb, queue, task, attempt, '') end

-- label_in(form) → queue, line (queue and priority) and task of the jobs that come so, the first place of that priority as a score
-- of `heads`, and how their news begin; nothing if they have a lane or a batch, or say anything rare.
function M.label_in(form)
  local label = labels[form]
  if label then return label end
  local _, lane, rare = struct.unpack(FORM_FORMAT, form)
  if lane + rare > 0 then return nil end
  local queue, priority, task = string.match(string.sub(form, FORM_SIZE + 1), '^([^\31]*)\31(%d*)\31([^\31]+)\31%d*\31%d*$')
  if not task then return nil end
  queue, priority = queue ~= '' and queue or USUAL_QUEUE, priority ~= '' and priority or USUAL_PRIORITY
  label = {
    queue = queue, line = queue .. SEP .. string.format('%02d', priority), task = task, first = priority * HEAD_STEP,
    entered = lines_begin('enqueue', queue, task, 0), leased = lines_begin('lease', queue, task, 1),
  }
  near.labels = (near.labels or 0) + 1
  if near.labels > 256 then labels, near.labels = {}, 1 end
  labels[form] = label
  return label
end

-- minute_prefix(label) → how the statistics of its queue begin in this minute.
function M.minute_prefix(label)
  local minute = request.now - request.now % 60000
  if label.minute ~= minute then
    label.stats = minute / 60000 .. SEP .. label.queue .. SEP
    label.count = label.stats .. 'enqueue'
    label.minute = minute
  end
  return label.stats
end

-- stamp() → the time as events have it.
local function stamp()
  if near.now ~= request.now then
    near.stamp = struct.pack('>BI8', 207, request.now)
    near.now = request.now
  end
  return near.stamp
end

-- event_entry(n, lines) → n lines, as the event is stored. packed_text(text) → as it is in these.
function M.event_entry(n, lines) return '\146' .. stamp() .. (n == 1 and '\145' or '\146') .. lines end

function M.packed_text(text) return #text < 32 and string.char(160 + #text) .. text or cmsgpack.pack(text) end

-- ready_member(line, number, id) → a member of `ready`.
function M.ready_member(line, number, id)
  local low = number % 256
  if near.block ~= number - low then
    near.hex = string.format('%010x', (number - low) / 256)
    near.block = number - low
  end
  return line .. near.hex .. hex_pairs[low] .. SEP .. id
end

return M
