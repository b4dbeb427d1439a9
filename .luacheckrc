-- What the server and engine/lua/loader.lua give to a module. tools/check_lua.py adds the constants.
std = {
   globals = {},
   read_globals = { "require", "use", "redis", "cmsgpack", "cjson", "struct", "string", "table", "math", "tonumber", "tostring",
                    "type", "ipairs", "pairs", "next", "unpack", "pcall", "error", "setmetatable" },
}
max_line_length = 120
ignore = { "212/_.*" }
-- The loader is completed, and its fields of `files` are set, when a library is put together.
files["**/loader.lua"] = { ignore = { "211", "212", "241", "431" } }
-- Generated statements stand here.
exclude_files = { "**/layout.lua" }
