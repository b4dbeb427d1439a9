-- Repair of batches, for reconcile. The records of the members say which batch they are in and how they ended. `roster`
-- follows from these records, and the numbers of a batch follow from `roster`. A member that is a batch itself has its
-- state in `batches` for a record.
--
-- b is a batch (batches.lua), h the header of a job.

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local jobs = require 'jobs'
local call = request.call

local M = {}

local letter_of = { dead = 'x', cancelled = 'c' }   -- outcome → letter of the second entry of such a member

-- parse(entry) → the parts of an entry of `roster`: id of the batch, letter, name and finish number of the member.
-- No name if the entry is malformed.
local function parse(entry)
  local id, letter, name = string.match(entry, '^([^\31]*)\31(%l)\31(.*)$')
  if letter ~= 'f' then return id, letter, name end
  local number
  number, name = string.match(name, '^(%d+)\31(.*)$')
  return id, letter, name, tonumber(number)
end

-- standing(b, name, h) → state and finish number of this member, and the batch that it is, if it is one.
-- Nothing if the name is not that of a member.
local function standing(b, name, h)
  local inner = name and string.sub(name, 1, 1) == '{' and batches.get(string.sub(name, 2))
  if inner and batches.of_member(inner[B_PARENT], inner[B_CREATED]) == b then
    return inner[B_PHASE] == 'ended' and inner[B_OUTCOME] or 'running', inner[B_FINISH], inner
  end
  if h and batches.of_member(h[BATCH], h[CREATED]) == b then return h[STATE], h[FINISH] end
end

-- belongs(entry, h) → may this entry stay in `roster`? h is the header of the job that it names, if there is one.
function M.belongs(entry, h)
  local id, letter, name, number = parse(entry)
  local b = id and batches.get(id)
  if not b then return id and call('ZSCORE', keys.chores, 'forget' .. SEP .. id) end
  local state, finish_number, inner = standing(b, name, h)
  if not state then   -- a finished member may have been forgotten, once its batch has ended for the first time
    return letter ~= 'u' and (b[B_PHASE] == 'ended' or b[B_GENERATION] > 1)
  end
  if letter == 'u' then return state == 'running' or (h and jobs.waits(h)) end
  if letter == 'x' then return state == 'dead' end
  if letter == 'c' then return state == 'cancelled' end
  return (state == 'done' and not inner) or (finish_number > 0 and finish_number == number)
end

-- entries(b, name, state, number) → the entries that `roster` must have for this member; number is its finish number.
-- The records of done jobs do not have it, so their entry is not among them.
function M.entries(b, name, state, number)
  if state ~= 'done' and state ~= 'dead' and state ~= 'cancelled' then return { batches.member(b.id, 'u', name) } end
  local entries, letter = {}, letter_of[state]
  if number > 0 then entries[1] = batches.numbered(b.id, number, name) end
  if letter then entries[#entries + 1] = batches.member(b.id, letter, name) end
  return entries
end

-- last_number(b) → the highest finish number in `roster`, or 0.
local function last_number(b)
  local first, last = '[' .. b.id .. SEP .. 'f' .. SEP, '(' .. b.id .. SEP .. 'f' .. AFTER
  local entry = call('ZRANGE', keys.roster, last, first, 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
  return entry and tonumber(string.match(entry, '^[^\31]*\31f\31(%d+)')) or 0
end

-- recount(b) → true if its numbers differed from those of `roster`. Now they are the same.
function M.recount(b)
  local n = {}   -- letter → how many entries
  for _, letter in ipairs({ 'u', 'f', 'x', 'c' }) do
    local start = b.id .. SEP .. letter
    n[letter] = call('ZLEXCOUNT', keys.roster, '[' .. start .. SEP, '(' .. start .. AFTER)
  end
  local correct = {
    [B_TOTAL] = n.u + n.f, [B_DONE] = n.f - n.x - n.c, [B_DEAD] = n.x, [B_CANCELLED] = n.c,
    [B_FINISHES] = math.max(last_number(b), b[B_FINISHES]),
  }
  local differs = false
  if n.x > b[B_DEAD] then b.member_died = true end
  for field, value in pairs(correct) do
    if b[field] ~= value then b[field], differs = value, true end
  end
  batches.touch(b)
  return differs
end

return M
