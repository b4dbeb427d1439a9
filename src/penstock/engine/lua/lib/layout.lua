-- What is generated from the declaration of the record (engine/record/layout.py), written out for speed.

local M = {}

-- header_with(kind, …) → a header of this kind, of which these values are known, and nothing rare.
function M.header_with(kind, to, payload, record, state, since, seq, arrival, created, size, specs, home, started, fence,
    claim, result, cancelling, starts)
  return { kind = kind, to = to, payload = payload, record = record, HEADER_VALUES }
end

-- add_rare_values(h, rare, n) → how many values the list `rare` has, once to its n values those rare fields of the header
-- h are added that are not usual.
function M.add_rare_values(h, rare, n)
  ADD_RARE_VALUES
  return n
end

-- range_of(ms) → the range of the histograms that a duration falls into.
function M.range_of(ms) return RANGE_OF end

return M
