-- log: running → running. Lines that attempts wrote; of each job the last ones are kept.
-- flags: allow-oom
-- keys: logs
-- include: header write lanes move line finish
-- args: worker, then per job: id, call number, how many lines this attempt sent before, and lines: msgpack of
--       [time in ms, attempt, level, text] each
-- returns: per job: ok | stale
-- event: log
local MOST, BYTES = 200, 16384   -- lines, and bytes of them, kept per job
local ids, answers = {}, {}
for at = 2, ARGC, 4 do ids[#ids + 1] = ARGV[at] end
local headers = read(ids)

-- kept(id) → what is stored: the attempt that wrote last, how many lines it sent, how many lines are gone, and the others.
local function kept(id)
  local fine, found = pcall(cmsgpack.unpack, call('HGET', logs, id) or '')
  if not fine or type(found) ~= 'table' or type(found[4]) ~= 'table' then return { '', 0, 0, {} } end
  return found
end

-- shorten(record): without its first lines, if there are too many or they are too long.
local function shorten(record)
  local size, lines_of = 0, record[4]
  local first = #lines_of + 1
  while first > 1 and #lines_of - first + 1 < MOST do
    size = size + #lines_of[first - 1][4]
    if size > BYTES and first <= #lines_of then break end
    first = first - 1
  end
  local rest = {}
  for i = first, #lines_of do rest[#rest + 1] = lines_of[i] end
  record[3], record[4] = record[3] + first - 1, rest
end

for i, id in ipairs(ids) do
  local h, at = headers[i], i * 4 - 1
  local claim = ARGV[1] .. SEP .. ARGV[at]
  answers[i] = 'stale'
  if h and h[STATE] == 'running' and h[CLAIM] == claim then
    local record, before, fresh = kept(id), tonumber(ARGV[at + 1]), cmsgpack.unpack(ARGV[at + 2])
    if record[1] ~= claim then record[1], record[2] = claim, before end
    for n = record[2] - before + 1, #fresh do record[4][#record[4] + 1] = fresh[n] end   -- a resent call adds none twice
    record[2] = math.max(record[2], before + #fresh)
    shorten(record)
    store(logs, id, cmsgpack.pack(record))
    note('log', id, h)
    answers[i] = 'ok'
  end
end
finish()
return answers
