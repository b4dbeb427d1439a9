-- The ends of batches: which of those that were touched end in this script, and what follows from it. It is the last thing
-- before lanes are refilled and everything is written.

function endings.look_at()
  local kit, before = batch_kit, created
  need_line()   -- the lane of a batch may be closed or opened
  need_create()

  -- spawn(b, which, what): the job that its spec has for this point of this generation, from which part on. Its id is made of
  -- these, so there is one, however often this is decided.
  local function spawn(b, which, what)
    local raw = call('HGET', batches, 'spec' .. SEP .. b.id) or ''
    local parts = { pcall(struct.unpack, '>I4c0I4c0I4c0I4c0I4c0I4c0', raw) }
    local h = parts[1] and new_header(parts[which])
    local id = b.id .. '@' .. what .. '-' .. b[B_GENERATION]
    local there = read({ id })[1]
    if there and there[CREATED] < b[B_CREATED] then   -- of a batch that had this id before
      id = id .. '-' .. digits(b[B_CREATED])
      there = read({ id })[1]
    end
    if not h or there or spoilt[id] then return end
    create('enqueue', id, h, parts[which + 1] .. kit.told(b) .. parts[which + 2], 'batch ' .. b.id)
  end

  local function conclude(b)
    b[B_PHASE], b[B_ENDED] = 'ended', now
    b[B_OUTCOME] = b[B_REASON] ~= '' and 'cancelled' or b[B_DEAD] > 0 and 'dead' or 'done'
    if b[B_CHORE] == 'cancel' then
      b[B_CHORE], b[B_CURSOR] = '', ''
      withdraw(chores, 'cancel' .. SEP .. b.id)
      kit.close(b, false)
    end
    enter(chores, now + b[B_KEEP], 'forget' .. SEP .. b.id)
    alarm(chores, now + b[B_KEEP])
    ended[#ended + 1] = '{end}' .. b.id
    b.news = true
    note('end_batch', b.id, kit.subject(b), b[B_OUTCOME])
    spawn(b, 2, 'then')
    local parent = kit.of(b[B_PARENT], b[B_CREATED])
    if parent then
      b[B_FINISH] = kit.leave(parent, '{' .. b.id, b[B_OUTCOME])
      touched[#touched + 1] = parent.id   -- again, should it have been looked at already
    end
  end

  local next_one = 1
  while touched[next_one] do
    local b = touched[touched[next_one]]
    if b.died and b[B_FAILED] == 0 then
      b[B_FAILED] = 1
      spawn(b, 5, 'on_failure')
    end
    if b[B_PHASE] == 'sealed' and kit.pending(b) == 0 and b[B_CHORE] ~= 'retry' then conclude(b) end
    next_one = next_one + 1
  end
  for i = 1, #touched do
    local b = touched[touched[i]]
    if b.news then ended[#ended + 1], b.news = '{more}' .. b.id, nil end
    set(batches, 'state' .. SEP .. b.id, cmsgpack.pack({ unpack(b, 1, B_FIELDS) }))
  end
  if created > before then
    store(meta, 'accepted', (accepted_before or 0) + created)
    for queue in pairs(entered) do call('HSETNX', queues, queue, '') end
  end
end
