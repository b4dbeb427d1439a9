-- Mending batches: who is a member, and how it ended, is in the headers; `roster` follows from these, and the numbers in
-- `batches` from that. Of a batch inside another its own record is the header.

local request = require 'request'
local keys = require 'keys'
local batches = require 'batches'
local jobs = require 'jobs'
local call = request.call

local M = {}

-- belongs(entry, h) → may it stay in `roster`? A finished member of a batch that has ended once may have been forgotten.
function M.belongs(entry, h)
  local id, kind, name = string.match(entry, '^([^\31]*)\31(%l)\31(.*)$')
  local b = id and batches.get(id)
  if not b then return id and call('ZSCORE', keys.chores, 'forget' .. SEP .. id) end
  local number = ''
  if kind == 'f' then number, name = string.match(name, '^(%d+)\31(.*)$') end
  local inside = name and string.sub(name, 1, 1) == '{' and batches.get(string.sub(name, 2))
  local state, own = h and h[STATE], h and h[FINISH]
  if inside and batches.of_member(inside[B_PARENT], inside[B_CREATED]) == b then
    state, own = inside[B_PHASE] == 'ended' and inside[B_OUTCOME] or 'running', inside[B_FINISH]
  elseif not h or batches.of_member(h[BATCH], h[CREATED]) ~= b then
    return kind ~= 'u' and (b[B_PHASE] == 'ended' or b[B_GENERATION] > 1)
  end
  if kind == 'u' then return state == 'running' or (h and jobs.waits(h)) end
  if kind == 'x' then return state == 'dead' end
  if kind == 'c' then return state == 'cancelled' end
  return (state == 'done' and not inside) or (own > 0 and own == tonumber(number))
end

-- writes.later(b, name, state, finish) → where a member must be found; of one that is done it is not known at which number.
function M.entries(b, name, state, number)
  local letters = { dead = 'x', cancelled = 'c' }
  if state ~= 'done' and state ~= 'dead' and state ~= 'cancelled' then return { batches.member(b.id, 'u', name) } end
  local found = number > 0 and { batches.numbered(b.id, number, name) } or {}
  if letters[state] then found[#found + 1] = batches.member(b.id, letters[state], name) end
  return found
end

-- recount(b) → did its numbers differ from what is in `roster`?
function M.recount(b)
  local n = {}
  for _, kind in ipairs({ 'u', 'f', 'x', 'c' }) do
    n[kind] = call('ZLEXCOUNT', keys.roster, '[' .. b.id .. SEP .. kind .. SEP, '(' .. b.id .. SEP .. kind .. AFTER)
  end
  local first, last = '[' .. b.id .. SEP .. 'f' .. SEP, '(' .. b.id .. SEP .. 'f' .. AFTER
  local latest = call('ZRANGE', keys.roster, last, first, 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
  local number = latest and tonumber(string.match(latest, '^[^\31]*\31f\31(%d+)')) or 0
  local right = { [B_TOTAL] = n.u + n.f, [B_DONE] = n.f - n.x - n.c, [B_DEAD] = n.x, [B_CANCELLED] = n.c,
                  [B_FINISHES] = math.max(number, b[B_FINISHES]) }
  local differs = false
  if n.x > b[B_DEAD] then b.died = true end
  for slot, value in pairs(right) do
    if b[slot] ~= value then b[slot], differs = value, true end
  end
  batches.touch(b)
  return differs
end

return M
