-- What a lane allows: how many jobs run at once (its limit), and how many start in a time (its rate). The rate is a
-- bucket of tokens: it fills with time, up to the burst, and each start takes as many tokens as the job costs.

local request = require 'request'
local keys = require 'keys'
local writes = require 'writes'

local M = {}

local TOLERANCE = 0.000001   -- of a number of tokens, which is a fraction

-- set_declared(lane, limit, rate, burst, kind) → did jobs declare something else before? The values are text.
local function set_declared(lane, limit, rate, burst, kind)
  local declared = limit .. SEP .. rate .. SEP .. burst .. SEP .. kind
  local differs = lane.declared ~= '' and lane.declared ~= declared
  if differs then lane.differs = lane.declared end
  lane.declared = declared
  lane.limit, lane.rate, lane.burst = tonumber(limit) or math.huge, tonumber(rate), tonumber(burst) or 1
  lane.kind = kind ~= '' and kind or nil
  return differs
end

-- add_tokens(lane): the bucket gets the tokens of the time since it was last looked at.
local function add_tokens(lane)
  local elapsed = math.max(request.now - lane.at, 0)   -- the clock may have been set back
  lane.tokens = math.min(lane.burst, (lane.tokens or lane.burst) + elapsed * lane.rate)
  lane.at = request.now
end

-- declare(lane, rest) → did jobs declare something else before? `rest` is what follows the name of the lane in the
-- spec of a job: limit, rate per ms, burst, kind and cost; of a lock nothing. The job that came last decides, also
-- for the jobs before it. What was set by hand wins. An ordered lane never has more than one slot.
function M.declare(lane, rest)
  lane.rest = rest
  local limit, rate, burst, kind = string.match(rest, '^([^\31]*)\31([^\31]*)\31([^\31]*)\31([^\31]*)')
  local differs = false
  if kind then differs = set_declared(lane, limit, rate, burst, kind) else lane.limit = 1 end
  if lane.set >= 0 then lane.limit = lane.set end
  if lane.kind then lane.limit = math.min(lane.limit, 1) end
  if lane.paused then lane.limit = 0 end
  if lane.rate then add_tokens(lane) end
  return differs
end

-- store_settings(name, limit, paused): sets by hand what this lane allows. With a limit of -1, its jobs declare it.
function M.store_settings(name, limit, paused)
  if limit < 0 and paused == 0 then
    writes.delete(keys.limits, name)
  else
    writes.set(keys.limits, name, cmsgpack.pack({ limit, paused }))
  end
end

-- cost_of(spec) → how many tokens a start of the job takes.
function M.cost_of(spec) return tonumber(string.match(spec, '\31([^\31]*)$')) or 1 end

-- price(lane, cost) → how many tokens there must be for a start. If it costs more than the burst, a full bucket is
-- enough. It is below zero afterwards, so the next start waits longer.
function M.price(lane, cost) return math.min(cost, lane.burst) - TOLERANCE end

-- lacks_tokens(lane, cost) → does a start have to wait for the rate?
function M.lacks_tokens(lane, cost) return lane.rate and lane.tokens < M.price(lane, cost) end

-- tokens_for(lane) → how many starts there are tokens for, if each costs one.
function M.tokens_for(lane)
  return lane.rate and math.floor(lane.tokens / math.min(1, lane.burst) + TOLERANCE) or math.huge
end

-- room(lane, row) → how many jobs of one queue could run or be shown, and true if only the job that has the turn can.
-- That job has the only slot of its ordered lane, and may wait there itself.
function M.room(lane, row)
  local slots, turn_only = lane.limit - lane.use, false
  local may_be_ordered = lane.kind or lane.differs ~= ''
  if may_be_ordered and slots == 0 and lane.use > 0 and #row.shown == 0 then slots, turn_only = 1, true end
  return slots, turn_only
end

return M
