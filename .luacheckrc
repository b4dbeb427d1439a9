-- The scripts are assembled from a generated prelude, the pieces that a verb includes, and the verb itself;
-- tools/check_lua.py writes them out whole, so that luacheck sees exactly what the server runs.
std = {
   globals = {},
   read_globals = { "KEYS", "ARGV", "redis", "cmsgpack", "cjson", "struct", "string", "table", "math",
                    "tonumber", "tostring", "ipairs", "pairs", "unpack", "next", "type", "pcall", "error", "select" },
}
-- Assembled lines are longer than written ones; ours are kept at 120 by tools/check_lua.py.
max_line_length = false
-- A piece defines a few functions and each verb uses some of them; the prelude names every header field.
ignore = { "211", "212/_.*", "241" }
