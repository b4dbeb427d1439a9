-- The loader. Every library, and every script, is this file with the modules in it (engine/scripts.py puts them in).
--
-- A module is a file of lib/ or verbs/. It returns a table and asks for others with require 'name'. A module that keeps
-- anything for the time of one call has reset(), which is called at the beginning of each call whose verb needs it.
-- A verb's module has run(), which returns the answer.
--
-- The server gives Lua's own names only to a call that runs, so modules are made by the first call. They get these
-- names as arguments: a local is found faster than a global.
local function start(redis, string, math, table, struct, cmsgpack, cjson, tonumber, tostring, type, ipairs, pairs, next,
    unpack, pcall, error, setmetatable)
  local files = {}    -- module → the function that makes it
  local resets = {}   -- verb → its modules that have reset(); each comes after those that it needs
  local loaded, last_reset, call_number = {}, {}, 0

  -- require(name) → the module, made when it is first asked for.
  local function require(name)
    if not loaded[name] then loaded[name] = files[name]() end
    return loaded[name]
  end

  -- use(name) → the same, with all state of it and of what it requires made anew for this call.
  local function use(name)
    local module = require(name)
    for _, needed in ipairs(resets[name]) do
      if last_reset[needed] ~= call_number then
        last_reset[needed] = call_number
        loaded[needed].reset()
      end
    end
    return module
  end

  -- MODULES

  local request, keys, meta = require 'request', require 'keys', require 'meta'

  return function(verb, key_names, given_keys, args)
    call_number = call_number + 1
    request.begin(args)
    keys.begin(key_names, given_keys)
    local refusal = verb ~= 'init' and meta.read()   -- init makes what the others check
    return refusal or use(verb).run()
  end
end
