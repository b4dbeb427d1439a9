-- What a call leaves for the next, where its script is kept as a function: how labels and numbers are written, which mostly are
-- those of the call before. Never anything that is stored. What tells that it is known is set last: a call may be killed.

local labels = {}   -- kept: form → what it says, of up to 256
local near = {}     -- kept: how the last numbers were written

-- news_of(verb, queue, task, attempt) → how a line of an event begins; ids follow.
local function news_of(verb, queue, task, attempt) return '\150' .. cmsgpack.pack(verb, queue, task, attempt, '') end

-- label_in(form) → queue, line (queue and priority) and task of the jobs that come so, the first place of that priority as a score
-- of `heads`, and how their news begin; nothing if they have a lane or a batch, or say anything rare.
local function label_in(form)
  local label = labels[form]
  if label then return label end
  local _, lane, rare = struct.unpack(FORM_FORMAT, form)
  if lane + rare > 0 then return nil end
  local queue, priority, task = string.match(string.sub(form, FORM_SIZE + 1), '^([^\31]*)\31(%d*)\31([^\31]+)\31%d*\31%d*$')
  if not task then return nil end
  queue, priority = queue ~= '' and queue or USUAL_QUEUE, priority ~= '' and priority or USUAL_PRIORITY
  label = {
    queue = queue, line = queue .. SEP .. string.format('%02d', priority), task = task, first = priority * HEAD_STEP,
    entered = news_of('enqueue', queue, task, 0), leased = news_of('lease', queue, task, 1),
  }
  near.labels = (near.labels or 0) + 1
  if near.labels > 256 then labels, near.labels = {}, 1 end
  labels[form] = label
  return label
end

-- minute_of(label) → how the statistics of its queue begin in this minute.
local function minute_of(label)
  local minute = now - now % 60000
  if label.minute ~= minute then
    label.stats = minute / 60000 .. SEP .. label.queue .. SEP
    label.count = label.stats .. 'enqueue'
    label.minute = minute
  end
  return label.stats
end

-- stamp() → the time as events have it.
local function stamp()
  if near.now ~= now then
    near.stamp = struct.pack('>BI8', 207, now)
    near.now = now
  end
  return near.stamp
end

-- entry_of(n, lines) → n lines, as the event is stored. packed_text(text) → as it is in these.
local function entry_of(n, lines) return '\146' .. stamp() .. (n == 1 and '\145' or '\146') .. lines end
local function packed_text(text) return #text < 32 and string.char(160 + #text) .. text or cmsgpack.pack(text) end

-- near_place(line, number, id) → a member of `ready`.
local function near_place(line, number, id)
  local low = number % 256
  if near.block ~= number - low then
    near.hex = string.format('%010x', (number - low) / 256)
    near.block = number - low
  end
  return line .. near.hex .. (pairs_of[low] or pairs_of.new(low)) .. SEP .. id
end
