-- What a job without a header is stored as (lib/label.lua), and its place in line.

-- bytes_of[n] → that byte as text; pairs_of[n] → its two hexadecimal digits; bytes_of.new(n), pairs_of.new(n) where they are not
-- known yet. To find them takes a fifth of making them.
local bytes_of = {}
function bytes_of.new(n)
  bytes_of[n] = string.char(n)
  return bytes_of[n]
end
local pairs_of = {}
function pairs_of.new(n)
  pairs_of[n] = string.format('%02x', n)
  return pairs_of[n]
end

-- record_of(mark, number, payload) → what is stored from its label, and its lane if it has one, on: its place, time, size, and its
-- payload if that is small.
local function record_of(mark, number, payload)
  local n = #payload
  local within = n < 256 and '\196' .. (bytes_of[n] or bytes_of.new(n)) .. payload or NOWHERE
  return mark .. struct.pack('>BI8BI8BI4', 207, number, 207, now, 206, n) .. within
end

-- mark_of(claim) → what is put in front of a job that runs, up to its fence.
local function mark_of(claim) return cmsgpack.pack(claim) .. struct.pack('>BI8B', 207, now, 207) end

-- rank_of(priority, number) → a place in line as text, to be sorted by.
local function rank_of(priority, number) return string.format('%02d%012x', priority, number) end

-- near_rank(priority, number) → the same, of whole numbers from 0 on: of 256 in a row what differs is the last two digits.
local rank_heads = {}
local function near_rank(priority, number)
  if priority > 99 then return rank_of(priority, number) end   -- somebody else wrote that
  local low = number % 256
  local block = number - low + priority
  local head = rank_heads[block]
  if not head then
    head = string.sub(rank_of(priority, number), 1, -3)
    rank_heads[block] = head
  end
  return head .. (pairs_of[low] or pairs_of.new(low))
end
