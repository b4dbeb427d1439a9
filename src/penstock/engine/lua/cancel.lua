-- cancel: scheduled | held | ready → cancelled; a running job is flagged and its worker told.
-- flags: allow-oom
-- include: record mail header write waiters lanes owners batches move line enter finish create ends stop
-- args: reason, then the ids
-- returns: per job: cancelled | cancelling | missing, or the state it had already ended in
-- event: cancel
local ids, answers = {}, {}
for at = 2, ARGC do ids[#ids + 1] = ARGV[at] end
local headers = read(ids)
meet(headers, #ids)
for i, id in ipairs(ids) do answers[i] = stop('cancel', id, headers[i], ARGV[1]) end
stopped()
return answers
