-- Chores: what is done to batches in pages, by whoever asked for it, and by any timer should that one be gone.

local handover = 2000   -- ms after a page until others may go on with it

-- take_up(b, what, cursor): this is worked off from here on.
local function take_up(b, what, cursor)
  if b[B_CHORE] ~= '' and b[B_CHORE] ~= what then withdraw(chores, b[B_CHORE] .. SEP .. b.id) end
  b[B_CHORE], b[B_CURSOR] = what, cursor
  enter(chores, now + handover, what .. SEP .. b.id)
  if handover > 0 then alarm(chores, now + handover) end
  batch_kit.touch(b)
end

-- let_go(b): that is done.
local function let_go(b)
  withdraw(chores, b[B_CHORE] .. SEP .. b.id)
  if b[B_CHORE] == 'cancel' then batch_kit.close(b, false) end
  b[B_CHORE], b[B_CURSOR] = '', ''
  batch_kit.touch(b)
end

-- call_off(verb, b, reason) → cancelled | ended, as it was. It takes no more members, none of them starts, and they are cancelled
-- in pages.
local function call_off(verb, b, reason)
  if b[B_PHASE] == 'ended' then return 'ended' end
  if b[B_REASON] ~= '' then return 'cancelled' end
  b[B_PHASE], b[B_REASON] = 'sealed', reason
  withdraw(chores, 'abandon' .. SEP .. b.id)
  batch_kit.touch(b)
  if batch_kit.pending(b) > 0 then
    take_up(b, 'cancel', '')
    batch_kit.close(b, true)
  elseif b[B_CHORE] ~= '' then
    let_go(b)
  end
  note(verb, b.id, batch_kit.subject(b), reason)
  return 'cancelled'
end

-- is_called_off(b) → is it cancelled, though some members still run?
local function is_called_off(b) return b[B_PHASE] ~= 'ended' and b[B_REASON] ~= '' end

-- set_going(verb, b) → are there dead members, so that they are run again in pages?
local function set_going(verb, b)
  if b[B_CHORE] == 'retry' then return true end
  if b[B_DEAD] == 0 or is_called_off(b) then return false end
  if b[B_PHASE] == 'ended' then batch_kit.reopen(b) end
  take_up(b, 'retry', '')
  note(verb, b.id, batch_kit.subject(b))
  return true
end

-- names_after(b, kind, n) → the names of the next members of this kind, from where its chore has come to.
local function names_after(b, kind, n)
  local from = batch_kit.member(b.id, kind, b[B_CURSOR])
  local names, until_then = {}, '(' .. b.id .. SEP .. kind .. AFTER
  for i, entry in ipairs(call('ZRANGE', roster, '(' .. from, until_then, 'BYLEX', 'LIMIT', 0, n)) do
    names[i] = string.sub(entry, #b.id + #kind + 3)
  end
  return names
end

-- page(b, kind, n, on_job, on_batch) → how many were seen to. It is let go after the last.
local function page(b, kind, n, on_job, on_batch)
  local names = names_after(b, kind, n)
  local headers = read(names)
  meet(headers, #names)
  for i, name in ipairs(names) do
    local inside = string.sub(name, 1, 1) == '{' and batch_kit.one(string.sub(name, 2))
    local h = headers[i]
    if inside then
      if batch_kit.of(inside[B_PARENT], inside[B_CREATED]) == b then on_batch(inside) end
    elseif h and batch_kit.of(h[BATCH], h[CREATED]) == b then   -- another job may have the id of one that was forgotten
      on_job(name, h)
    end
  end
  if #names < n then let_go(b) else take_up(b, b[B_CHORE], names[#names]) end
  return #names
end
