-- complete: running → done.
-- flags: allow-oom
-- keys: payloads results
-- include: header write move settle
-- args: worker, then per job: id, call number, result ('' for nothing)
-- returns: per job: ok | stale
-- event: complete
return settle('complete', 3, function(id, h, at)
  local result = ARGV[at]
  if result ~= '' and h[KEEP] > 0 then
    store(results, id, result)
    h[RESULT] = 1
  elseif result ~= '' then
    h[RESULT] = 2
  end
  h[REASON] = ''
  erase(payloads, id)
  move('complete', id, h, 'done')
end)
