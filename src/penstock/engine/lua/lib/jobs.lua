-- The headers of jobs: reading them, and the one index that each state puts a job into. A header `h` is a record taken
-- apart (lib/record.lua): a list of FIELDS values, in the order of `Header` in model/header.py.

local request = require 'request'
local keys = require 'keys'
local record = require 'record'
local call = request.call

local M = {}

M.FIRST = string.rep('0', 14)   -- the rank in `held` of a job whose turn it is

local decoded, unreadable, ready_members, rewritten

function M.reset()
  decoded = {}         -- id → header, so that an id that is named twice in a page is one job
  unreadable = {}      -- id → true, if its record cannot be read
  ready_members = {}   -- id → member of `ready`, if it is known already
  rewritten = {}       -- id → record that this call will store, where it may be read again before that
  M.kept_records = {}  -- id → record of which only HEAD, RUN and `seq` will change
  M.decoded, M.unreadable, M.ready_members, M.rewritten = decoded, unreadable, ready_members, rewritten
end

-- decode_once(id, raw) → the header of the job with this record; nothing if there is none, or it cannot be read.
local function decode_once(id, raw)
  local h = decoded[id]
  if not h and raw then
    h = record.decode(raw)
    decoded[id] = h
    if not h then unreadable[id] = true end
  end
  return h
end

-- read(ids) → the headers, by position. One that was read before is given again, with the changes made to it since.
local function read(ids)
  local headers, unread_ids, positions = {}, {}, {}
  for i = 1, #ids do
    local h = decoded[ids[i]]
    if h then
      headers[i] = h
    else
      local n = #unread_ids + 1
      unread_ids[n] = ids[i]
      positions[n] = i
    end
  end
  if #unread_ids == 0 then return headers end
  local raw = call('HMGET', keys.jobs, unpack(unread_ids))
  for n = 1, #unread_ids do
    local id = unread_ids[n]
    headers[positions[n]] = decode_once(id, rewritten[id] or raw[n])
  end
  return headers
end

-- read_kept(ids, raw, read_header) → the headers of those whose records are kept, by position: see read_waiting().
local function read_kept(ids, raw, read_header)
  local headers = {}
  for i = 1, #ids do
    local id, packed = ids[i], raw[i]
    local h = packed and not decoded[id] and read_header(id, packed, i)
    if h then
      headers[i] = h
      M.kept_records[id] = packed
    end
  end
  return headers
end

-- read_waiting(ids, read_header) → the headers, by position. read_header(id, packed, i) gives the header of a job
-- whose record will be kept (see kept_records), or nothing if its record will be written anew. If one record cannot be
-- read, all are written anew.
function M.read_waiting(ids, read_header)
  if #ids == 0 then return {} end
  local are_readable, headers = pcall(read_kept, ids, call('HMGET', keys.jobs, unpack(ids)), read_header)
  if not are_readable then
    M.kept_records = {}
    return read(ids)
  end
  for i = 1, #ids do headers[i] = headers[i] or read({ ids[i] })[1] end
  return headers
end

-- waiting_header(id, packed) → the header of a job that is ready or held: a read_header for read_waiting().
function M.waiting_header(_, packed)
  local letter = string.sub(packed, 1, 1)   -- of its state
  if letter == IS_READY or letter == IS_HELD then return record.parse(packed) end
end

-- decode_fully(id, h) → the header of this job, which read_waiting() gave. Its record will be written anew after
-- all.
function M.decode_fully(id, h)
  h = decoded[id] or h
  M.kept_records[id] = nil
  decoded[id] = h
  return h
end

-- last_part(member) → what follows the last separator: mostly an id.
function M.last_part(member) return string.match(member, '^.*\31(.*)$') or member end

-- ready_member(id, h) → its member of `ready`: queue, priority and place in line, id.
local function ready_member(id, h)
  return ready_members[id] or h[QUEUE] .. SEP .. record.rank(h[PRIORITY], h[SEQ]) .. SEP .. id
end

-- is_ordered(spec) → does this lane keep the order, by what the job says of it?
local function is_ordered(spec) return record.lane_name(spec) and record.lane_kinds[spec] end

-- held_member(id, h) → its member of `held`: lane, queue, priority and arrival, id. The job whose turn it is comes
-- first. In an ordered lane priorities do not matter.
local function held_member(id, h)
  local spec, rank = h[LANES][h[HOME]], M.FIRST
  if h[HOME] ~= h[TURN] then
    local priority = is_ordered(spec) and 0 or h[PRIORITY]
    rank = record.rank(priority, h[ARRIVAL])
  end
  return record.lane_name(spec) .. SEP .. h[QUEUE] .. SEP .. rank .. SEP .. id
end

-- index_entry(id, h) → key, score and member of the index that holds a job in this state.
function M.index_entry(id, h)
  local state = h[STATE]
  if state == 'ready' then return keys.ready, '0', ready_member(id, h) end
  if state == 'running' then return keys.leases, '0', h[CLAIM] .. SEP .. id end
  if state == 'held' then return keys.held, '0', held_member(id, h) end
  if state == 'scheduled' then return keys.scheduled, h[DUE], id end
  if h[COMPACT] == 1 then return keys.tombs, h[SINCE], id end
  if state == 'dead' then return keys.dead, h[SINCE], id end
  return keys.finished, h[SINCE] + h[KEEP], id   -- done or cancelled
end

-- waits(h) → is the job still to run? Then it can expire.
function M.waits(h)
  return h[STATE] == 'ready' or h[STATE] == 'scheduled' or h[STATE] == 'held'
end

-- held_by(worker, limit) → the members of `leases` for the jobs that this worker runs; at most `limit`.
function M.held_by(worker, limit)
  return call('ZRANGE', keys.leases, '[' .. worker .. SEP, '(' .. worker .. AFTER, 'BYLEX', 'LIMIT', 0, limit)
end

-- first_score(key) → the lowest score of an index by time; nothing if it is empty (the sentinel's score is `inf`).
function M.first_score(key)
  local score = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return score ~= 'inf' and tonumber(score) or nil
end

M.decode_once = decode_once
M.read = read
M.is_ordered = is_ordered
M.held_member = held_member

return M
