-- Locks that one queue uses, as most are: free and showing a job, or taken while some wait. Nothing else being stored of such a
-- lane, it goes from one to the other as text, which is what packed_lane would make of it, and is not taken apart. Where it is
-- anything else, each of these says no, and it is dealt with as all lanes are.

-- on demand: need_locks

-- forms(queue) → how such locks are stored: as far as their queue, free and taken; [n] taken while n wait.
local lock_forms = {}
function lock_kit.forms(queue)
  local forms = lock_forms[queue]
  if not forms then
    forms = { free = '\153' .. cmsgpack.pack(0, 0, 0, '', '', queue), taken = '\153' .. cmsgpack.pack(1, 0, 0, '', '', queue) }
    forms[0] = '\149' .. cmsgpack.pack(1, 0, 0, '', '')
    lock_forms[queue] = forms
  end
  return forms
end

-- taken(forms, n) → what is stored of one that a job has and n wait for, at most 127.
function lock_kit.taken(forms, n)
  local text = forms[n]
  if not text then
    text = forms.taken .. string.char(n) .. '\0\160'
    forms[n] = text
  end
  return text
end

-- behind(name, forms, id) → how many wait in this lock, if it is free and shows this job and no other.
function lock_kit.behind(name, forms, id)
  local text, at = lane_texts[name], #forms.free
  if not text or #text ~= at + 3 + #id or string.sub(text, at + 4) ~= id then return nil end
  local n, worst, length = string.byte(text, at + 1, at + 3)
  if string.sub(text, 1, at) ~= forms.free or n > 127 or worst > 127 or length ~= 160 + #id or #id > 31 then return nil end
  return n
end

-- take(name, forms, n): the job that it shows runs, and n wait.
function lock_kit.take(name, forms, n)
  lane_texts[name] = lock_kit.taken(forms, n)
  as_locks[name] = true
end

-- free(name, queue) → did a job of this queue have this lock? It is free, and will show its next waiter, if there is one.
function lock_kit.free(name, queue)
  local text, forms = lane_texts[name], lock_kit.forms(queue)
  local n = text and string.byte(text, #forms.taken + 1) or 0
  if n > 127 or text ~= lock_kit.taken(forms, n) then return false end
  as_locks[name] = true
  lane_texts[name] = n > 0 and forms.free .. string.char(n) .. '\0\160'
  if n > 0 then
    freed[name] = queue
    refill({ name = name })
  end
  return true
end

-- show(name, queue, id, priority) → was this lock freed? It shows this waiter.
function lock_kit.show(name, queue, id, priority)
  if freed[name] ~= queue or #id > 31 or priority > 127 then return false end
  local forms = lock_kit.forms(queue)
  local left = string.byte(lane_texts[name], #forms.free + 1) - 1
  lane_texts[name] = forms.free .. string.char(left, priority, 160 + #id) .. id
  freed[name] = nil
  return true
end
