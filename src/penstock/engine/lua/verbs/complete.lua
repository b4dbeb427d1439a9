-- complete: running → done.
-- FLAGS: allow-oom
-- KEYS: meta idle jobs scheduled ready held leases dead finished tombs payloads heads lanes limits holders openings
--       batches roster chores timers unique cancels counts stats events waiting deaths queues attempts results
-- ARGV: worker, then per job: id, call number, result ('' for nothing)
-- returns: per job: ok | stale
-- event: complete

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local batches = require 'batches'
local finish = require 'finish'
local grouped_moves = require 'grouped_moves'
local jobs = require 'jobs'
local lanes = require 'lanes'
local lock_owners = require 'lock_owners'
local locks = require 'locks'
local settle = require 'settle'
local transition = require 'transition'
local writes = require 'writes'
local call = request.call

local M = {}

local lease_calls, glanced, alike, done_fronts, packed_now, ids, raw, kinds_of, specs, parts, records, holds, contents, slots, ends, seen

-- call_of(number, packed) → that call, if this is as it left it.
local function call_of(number, packed)
  local made = lease_calls[number]
  if not made then
    local claim = settle.claim_of(number)
    made = { claim = claim, front = record.running_front(claim), to = HEAD_SIZE + RUN_SIZE + #claim }
    if string.sub(packed, CLAIM_AT, made.to) ~= claim then return nil end
    made.started = struct.unpack(TIME_FORMAT, packed, RUN_AT)
    lease_calls[number] = made
  end
  return string.sub(packed, 1, FRONT) == made.front and string.sub(packed, CLAIM_AT, made.to) == made.claim and made
end

-- of_call(made, kind) → what jobs of one kind that this call leased have in common.
local function of_call(made, kind)
  local found = made[kind]
  if not found then
    found = { n = 0, waited = 0, group = false, kept_until = transition.digits(request.now + kind[KEEP]), unpack(kind, 1, FIELDS) }
    found[CLAIM], found[STARTED] = made.claim, made.started
    made[kind], alike[#alike + 1] = found, found
  end
  return found
end

-- done_front(kept, run) → how the record begins of one that is done now, whose RUN has this size, and whose result is kept so (0: there
-- is none, 1: under `results`, 2: not).
local function done_front(kept, run)
  local n = run * 3 + kept
  local front = done_fronts[n]
  if not front then
    front = IS_DONE .. string.char(kept * RESULT_FLAG, run) .. packed_now
    done_fronts[n] = front
  end
  return front
end

-- kept_of(id, result, keep) → how it is kept.
local function kept_of(id, result, keep)
  if result == '' then return 0 end
  if keep == 0 then return 2 end
  writes.set_content(keys.results, id, result)
  return 1
end

-- recognise() → the names of their lanes. Members of a batch mostly have label and lane in common.
local function recognise()
  local names, n, sub, numbers, args, fits = {}, 0, string.sub, struct.unpack, request.args, record.payload_fits
  local kind, label, form, form_size, spec = nil, nil, nil, 0, nil   -- of the last one
  for i = 1, #ids do
    local packed, number = raw[i] or '', args[i * 3]
    local made = call_of(number, packed)
    local at = made and made.to + BODY_SIZE
    local to = at and at + form_size + (spec and ARRIVAL_SIZE or 0)   -- where its form ends; nothing if it says anything rare
    if made and (not form or sub(packed, at + 1, at + form_size) ~= form) then
      to = nil
      local label_size, lane_size, rare_size
      if #packed >= at + FORM_SIZE then label_size, lane_size, rare_size = numbers(FORM_FORMAT, packed, at + 1) end
      if rare_size == 0 then
        local lane_at = at + FORM_SIZE + label_size
        local text = sub(packed, at + FORM_SIZE + 1, lane_at)
        local form_to = lane_at + lane_size
        to, form, spec = form_to, nil, nil
        if text ~= label then kind, label = record.known_kind(text), text end
        if lane_size > 0 then
          spec, to = sub(packed, lane_at + 1, form_to), form_to + ARRIVAL_SIZE
          n = n + 1
          names[n] = record.lane_name(spec)
        end
        if kind and (not spec or kind[BATCH] ~= '') then form, form_size = sub(packed, at + 1, form_to), form_to - at end
      end
    end
    if to and kind and fits(#packed - to, numbers(SIZE_FORMAT, packed, made.to + 1)) then
      kinds_of[i] = made[kind] or of_call(made, kind)
      specs[i] = spec
      parts[i] = to
    end
  end
  return names
end

-- recognise_all(): and reads their lanes.
local function recognise_all()
  local names = recognise()
  if #names == 0 then return end
  lanes.fetch(names)
end

-- give_back(lane, n): so many slots of it are free again.
local function give_back(lane, n) lane.use = math.max(lane.use - n, 0) end

-- end_run(from, answers) → the position after those from here on that are of one kind and one call; these are done.
local function end_run(from, answers)
  local kind, at, spec, lane, slot_head = kinds_of[from], from, nil, nil, nil
  local forms, taken = nil, 0
  local claim_head, keep, kept_until, one = kind[CLAIM] .. SEP, kind[KEEP], kind.kept_until, grouped_moves.event_of('complete', kind)
  local told, a, b, c, d, before = one[6], records.n, holds.n, ends.n, one[7], #transition.finished_ids
  local e, f, without, sub = before, slots.n, done_front(0, RUN_SIZE + #kind[CLAIM]), string.sub
  local to_store, to_keep, all_ended, all_kinds = records, ends, transition.finished_ids, kinds_of   -- locals are found at once
  local args, free = request.args, locks.free
  repeat
    local id, packed, to = ids[at], raw[at], parts[at]
    answers[at] = 'ok'
    if not seen[id] then
      seen[id] = true
      if specs[at] ~= spec then
        if lane then give_back(lane, taken) end
        spec, lane, taken = specs[at], nil, 0
        forms = spec and lock_owners.forms(kind[QUEUE])
      end
      if spec and (lane or not free(spec, forms, id)) then   -- an owner is not in `holders`
        if not lane then
          lane = lanes.of(spec)
          lanes.refill(lane)
          slot_head = lane.name .. SEP
        end
        if lane.unlisted == id then lane.unlisted = nil end
        taken = taken + 1
        f = f + 1
        slots[f] = slot_head .. id
      end
      if #packed == to then   -- its payload is not part of the record
        contents.n = contents.n + 1
        contents[contents.n] = id
      end
      local result = args[at * 3 + 1]
      local front = result == '' and without or done_front(kept_of(id, result, keep), RUN_SIZE + #kind[CLAIM])
      a = a + 2
      to_store[a - 1] = id
      to_store[a] = front .. sub(packed, RUN_AT, to)
      b = b + 1
      holds[b] = claim_head .. id
      c = c + 2
      to_keep[c - 1] = kept_until
      to_keep[c] = id
      d = d + 1
      told[d] = id
      e = e + 1
      all_ended[e] = id
    end
    at = at + 1
  until all_kinds[at] ~= kind
  if lane then give_back(lane, taken) end
  records.n, holds.n, ends.n, one[7], slots.n, kind.n = a, b, c, d, f, kind.n + e - before
  if kind[BATCH] ~= '' then
    local batch = batches.get(kind[BATCH])
    if batch then batches.leave_all(batch, transition.finished_ids, before + 1, e, 'done') end
  end
  return at
end

-- as_leased(id, packed, number) → the header of a job that is as that lease call left it, as most are.
local function as_leased(id, packed, number)
  local made = call_of(number, packed)
  if not made then return nil end
  local h = glanced[id] or record.parse(packed)
  glanced[id] = h
  return h
end

-- end_with_header(id, h, at): one with a header is done.
local function end_with_header(id, h, at)
  local kept, packed = kept_of(id, request.args[at], h[KEEP]), jobs.kept_records[id]
  if not h.payload then writes.delete(keys.payloads, id) end
  if packed then
    packed = done_front(kept, string.byte(packed, FRONT)) .. string.sub(packed, RUN_AT, h.to)
  else
    h[RESULT], h[REASON] = kept, ''
  end
  transition.move('complete', id, h, 'done', nil, packed)
end

function M.run()
  lease_calls = {}   -- call number → its claim, packed, when it started, and by kind what those it leased have in common
  glanced = {}   -- id → header of those that are as their lease left them
  alike = {}   -- what those of one kind and one call have in common
  done_fronts, packed_now = {}, struct.pack(TIME_FORMAT, request.now)
  -- By position, of those without a header that are as their call left them: id, record, kind, lane, how much is to be kept.
  ids, raw, kinds_of, specs, parts = {}, {}, {}, {}, {}
  local args = request.args
  for at = 2, request.argc, 3 do ids[(at + 1) / 3] = args[at] end
  if #ids > 0 then raw = call('HMGET', keys.jobs, unpack(ids)) end
  records, holds, contents = writes.command(2, 'HSET', keys.jobs), writes.command(3, 'ZREM', keys.leases), writes.command(3, 'HDEL', keys.payloads)
  slots, ends = writes.command(3, 'ZREM', keys.holders), writes.command(5, 'ZADD', keys.finished)
  seen = {}   -- id → true: it may be named twice in a page
  recognise_all()
  local answers = settle.settle_page('complete', 3, end_with_header, as_leased, kinds_of, end_run)
  for _, kind in ipairs(alike) do grouped_moves.move_kind(kind, 'running', 'done') end
  locks.hands_over = true
  finish.write_all()
  return answers
end

return M
