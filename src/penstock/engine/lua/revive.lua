-- revive: dead | cancelled → ready | held, at the tail of its line, with a fresh budget.
-- include: header write lanes batches move line enter finish create ends again
-- args: the ids
-- returns: per job: ok | missing | taken (another job has its unique key), or the state that it is in
-- event: revive
local ids, answers = {}, {}
for at = 1, ARGC do ids[#ids + 1] = ARGV[at] end
local headers = read(ids)
meet(headers, #ids)
for i, id in ipairs(ids) do answers[i] = again('revive', id, headers[i]) end
finish()
return answers
