-- Headers: reading them, and the one index that a job's state puts it in.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local call = request.call

local M = {}

M.FIRST = string.rep('0', 14)

local decoded, unreadable, ready_members, rewritten

function M.reset()
  -- A header is a record taken apart (lib/record.lua): a table of FIELDS values, in the order that job.Header has them in.
  decoded = {}   -- id → header, so that an id named twice in a page is one job
  unreadable = {}   -- id → true, where something is stored that is no header
  ready_members = {}   -- id → member of `ready`, where it is known already
  rewritten = {}   -- id → what will be stored of those that enqueue places, a lane shows, or whose lock was taken apart
  M.kept_records = {}   -- id → the record of those that are to stay as they are
  M.decoded, M.unreadable, M.ready_members, M.rewritten = decoded, unreadable, ready_members, rewritten
end

-- decode_once(id, raw) → the header of a job of which this is stored; nil if there is none or it cannot be understood.
local function decode_once(id, raw)
  local header = decoded[id]
  if not header and raw then
    header = record.decode(raw)
    decoded[id] = header
    if not header then unreadable[id] = true end
  end
  return header
end

-- read(ids) → the headers by position; what was read before is as it was left.
local function read(ids)
  local found, missing, positions = {}, {}, {}
  for i = 1, #ids do
    local header = decoded[ids[i]]
    if header then
      found[i] = header
    else
      missing[#missing + 1], positions[#positions + 1] = ids[i], i
    end
  end
  if #missing == 0 then return found end
  local raw = call('HMGET', keys.jobs, unpack(missing))
  for n = 1, #missing do found[positions[n]] = decode_once(missing[n], rewritten[missing[n]] or raw[n]) end
  return found
end

local function quick_ones(ids, raw, quick)
  local found = {}
  for i = 1, #ids do
    local id, packed = ids[i], raw[i]
    local h = packed and not decoded[id] and quick(id, packed, i)
    if h then found[i], M.kept_records[id] = h, packed end
  end
  return found
end

-- read_waiting(ids, quick) → the headers. quick(id, packed, i) gives that of one whose record will stay as it is but for its head, or
-- nothing; of the others, and of all if one of them cannot be understood, a new record will be made.
function M.read_waiting(ids, quick)
  if #ids == 0 then return {} end
  local fine, found = pcall(quick_ones, ids, call('HMGET', keys.jobs, unpack(ids)), quick)
  if not fine then
    M.kept_records = {}
    return read(ids)
  end
  for i = 1, #ids do found[i] = found[i] or read({ ids[i] })[1] end
  return found
end

-- waiting_header(id, packed) → the header of a job that waits to run.
function M.waiting_header(_, packed)
  local letter = string.sub(packed, 1, 1)
  if letter == IS_READY or letter == IS_HELD then return record.parse(packed) end
end

-- decode_fully(id, h) → the header of a job of which that was read: a new record will be made of it.
function M.decode_fully(id, h)
  h, M.kept_records[id] = decoded[id] or h, nil
  decoded[id] = h
  return h
end

-- last_part(member) → what follows its last separator: mostly an id.
function M.last_part(member) return string.match(member, '^.*\31(.*)$') or member end

-- line(id, h) → the member of `ready` that stands for this job: queue, priority, sequence, id.
local function line(id, h)
  return ready_members[id] or h[QUEUE] .. SEP .. record.rank(h[PRIORITY], h[SEQ]) .. SEP .. id
end

-- is_ordered(spec) → does this job say that the lane keeps the order?
local function is_ordered(spec) return record.lane_name(spec) and record.lane_kinds[spec] end

-- held_member(id, h) → the member of `held` that stands for this job: lane, queue, priority and arrival, id. Whose turn it is
-- comes first; otherwise in an ordered lane priorities do not matter.
local function held_member(id, h)
  local spec, rank = h[LANES][h[HOME]], M.FIRST
  if h[HOME] ~= h[TURN] then rank = record.rank(is_ordered(spec) and 0 or h[PRIORITY], h[ARRIVAL]) end
  return record.lane_name(spec) .. SEP .. h[QUEUE] .. SEP .. rank .. SEP .. id
end

-- index_entry(id, h) → key, score and member of the index that holds a job in this state.
function M.index_entry(id, h)
  local state = h[STATE]
  if state == 'ready' then return keys.ready, '0', line(id, h) end
  if state == 'running' then return keys.leases, '0', h[CLAIM] .. SEP .. id end
  if state == 'held' then return keys.held, '0', held_member(id, h) end
  if state == 'scheduled' then return keys.scheduled, h[DUE], id end
  if h[COMPACT] == 1 then return keys.tombs, h[SINCE], id end
  if state == 'dead' then return keys.dead, h[SINCE], id end
  return keys.finished, h[SINCE] + h[KEEP], id
end

-- waits(h) → is it yet to run, so that it can expire?
function M.waits(h)
  return h[STATE] == 'ready' or h[STATE] == 'scheduled' or h[STATE] == 'held'
end

-- held_by(worker, limit) → up to limit members of `leases`: what it runs.
function M.held_by(worker, limit)
  return call('ZRANGE', keys.leases, '[' .. worker .. SEP, '(' .. worker .. AFTER, 'BYLEX', 'LIMIT', 0, limit)
end

-- first_score(key) → the lowest score of an index by time, or nothing.
function M.first_score(key)
  local score = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return score ~= 'inf' and tonumber(score) or nil
end

M.decode_once = decode_once
M.read = read
M.is_ordered = is_ordered
M.held_member = held_member

return M
