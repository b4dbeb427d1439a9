-- Where lanes come in. Most pages have no job with a lane, so what deals with them is made when the first one is met.

-- meet(headers, n): reads the lanes of a page of headers in one go.
local function meet(headers, n)
  local names
  for i = 1, n do
    local specs = headers[i] and headers[i][LANES]
    if specs and #specs > 0 then
      names = names or {}
      for _, spec in ipairs(specs) do names[#names + 1] = lane_name(spec) end
    end
  end
  if not names then return end
  need_lanes()
  need_line()
  fetch(names)
end

-- line_up(verb, id, h, text): a job that may run from now on is shown in `ready`, or held by a lane that has no room.
local function line_up(verb, id, h, text)
  if #h[LANES] == 0 then return move(verb, id, h, 'ready', text) end
  need_lanes()
  need_line()
  if h[STATE] == '' then announce(h) end
  local at, state = place_in_line(h)
  wait_under(h, at)
  return move(verb, id, h, state, text)
end
