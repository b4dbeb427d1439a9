"""The scripts: one Lua file per verb, and the modules that they share, put together as the server runs them.

The server keeps all verbs as functions of one library, whose name has the hash of all that is in it: versions that
share a server do not meet. A server without functions, or a user who may not call them, gets a script per verb
instead. Both are `lua/loader.lua` with the modules in it.

A verb's file opens with its contract. Two of its lines are read here: `KEYS`, the keys that a call brings, in this
order, and `FLAGS`, of which `allow-oom` has the server run it although it is full.

Words in capitals are constants, which are put in before the server gets the text: fields of a header and of a batch,
the layout of the record (`record/layout.py`), and `SEP`, which ends each part of a lexical member. No name may hold a
control character. `AFTER` is the byte that follows it: `[name SEP, (name AFTER` is all that begins with `name SEP`.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

import msgspec

from penstock.engine.keys import HEAD_STEP, KINDS
from penstock.engine.record import layout
from penstock.engine.record.layout import USUAL
from penstock.model.batch_state import BatchState
from penstock.model.durations import DURATION_BUCKETS
from penstock.model.header import DELAY_BELOW

SCHEMA: Final = "5"
EVENTS_KEPT: Final = 10_000
STATS_MINUTES: Final = 120
RANGES_MS: Final = tuple(round(bound * 1000) for bound in DURATION_BUCKETS)

_TOKEN: Final = re.compile(
    r"""'(?:\\.|[^'\\\n])*' | "(?:\\.|[^"\\\n])*" | --[^\n]* | \b(?P<name>[A-Z][A-Z0-9_]*)\b""", re.VERBOSE
)
_MODULES: Final = "  -- MODULES\n"
#: Lua's own names, which the server gives to a call but not to the text of a library when it is loaded.
_NAMES: Final = (
    "redis, string, math, table, struct, cmsgpack, cjson, tonumber, tostring, type, ipairs, pairs, next, unpack, pcall,"
    " error, setmetatable"
)


@dataclass(frozen=True)
class Script:
    """One verb as the server runs it."""

    name: str
    keys: tuple[str, ...]
    fast_keys: int  #: how many of its keys are enough for calls that take its fast path, if it has one
    flags: tuple[str, ...]  #: for the server
    function: str  #: its name on the server
    _scripts: "Scripts"

    @cached_property
    def text(self) -> str:
        """The script for a server without functions."""
        return self._scripts.script_text(self)

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode()).hexdigest()  # noqa: S324  (EVALSHA's own hash)


class Scripts(Mapping[str, Script]):
    """All scripts by verb. `changed` has texts, by file, that replace or join those of the package."""

    def __init__(self, *, test: bool, changed: Mapping[str, str] | None = None) -> None:
        folder = resources.files("penstock.engine").joinpath("lua")
        self._loader = folder.joinpath("loader.lua").read_text("utf-8")
        files = {**_texts(folder, "lib"), **_texts(folder, "verbs"), **(changed or {})}
        for_tests = files.pop("lib/request_for_tests")
        if test:
            files["lib/request"] = for_tests
        self._modules = {name.partition("/")[2]: text for name, text in files.items()}
        verbs = {name.partition("/")[2]: text for name, text in files.items() if name.startswith("verbs/")}
        everything = repr((self._loader, sorted(self._modules.items()), sorted(constants().items())))
        self.version = hashlib.sha256(everything.encode()).hexdigest()[:12]
        self._verbs = {verb: self._script(verb, text) for verb, text in sorted(verbs.items())}

    def __getitem__(self, verb: str) -> Script:
        return self._verbs[verb]

    def __iter__(self) -> Iterator[str]:
        return iter(self._verbs)

    def __len__(self) -> int:
        return len(self._verbs)

    @cached_property
    def library(self) -> str:
        """What the server loads: all verbs as functions."""
        functions = "\n".join(
            f"redis.register_function{{ function_name = '{script.function}', flags = {_lua_list(script.flags)},"
            f" callback = function_of('{verb}', {_lua_list(script.keys)}) }}"
            for verb, script in self.items()
        )
        return (
            f"#!lua name=penstock_{self.version}\n{self._start(self._verbs)}\n"
            f"local run\n"
            f"local function function_of(verb, key_names)\n"
            f"  return function(given_keys, args)\n"
            f"    run = run or start({_NAMES})\n"
            f"    return run(verb, key_names, given_keys, args)\n"
            f"  end\n"
            f"end\n"
            f"{functions}\n"
        )

    def script_text(self, script: Script) -> str:
        """One verb as a script, with the modules that it needs."""
        return (
            f"#!lua{''.join(f' flags={flag}' for flag in script.flags)}\n{self._start([script.name])}\n"
            f"return start({_NAMES})('{script.name}', {_lua_list(script.keys)}, KEYS, ARGV)\n"
        )

    def _script(self, verb: str, text: str) -> Script:
        every = _contract(text, r"KEYS(?: of the fast path)?")
        fast = _contract(text, "KEYS of the fast path")
        flags = tuple(flag for flag in _contract(text, "FLAGS") if flag == "allow-oom")
        return Script(verb, every, len(fast), flags, f"penstock_{verb}_{self.version}", self)

    def _start(self, verbs: Iterable[str]) -> str:
        """The loader with the modules of these verbs."""
        order = _in_order(["request", "keys", "meta", *verbs], self._needed)
        files = [f"files.{name} = function()\n{constants_in(self._modules[name])}end" for name in order]
        entries = {*verbs, *(used for name in order for used in _named(self._modules[name], "use"))}
        resets = [f"resets.{name} = {_lua_list(self._with_state(name))}" for name in sorted(entries)]
        return self._loader.replace(_MODULES, "\n".join([*files, *resets, ""]))

    def _needed(self, name: str) -> list[str]:
        text = self._modules[name]
        return _named(text, "require") + _named(text, "use")

    def _with_state(self, entry: str) -> list[str]:
        """The modules that are made anew when this one is used; each comes after those that it needs."""
        names = _in_order([entry], lambda name: _named(self._modules[name], "require"))
        return [name for name in names if "\nfunction M.reset()" in self._modules[name]]


@cache
def load(*, test: bool = False) -> Scripts:
    """All scripts; the test build takes its time and a place to stop from its arguments."""
    return Scripts(test=test)


def _texts(folder: Traversable, part: str) -> dict[str, str]:
    """Name → text of the Lua files of one of its parts."""
    files = (file for file in folder.joinpath(part).iterdir() if file.name.endswith(".lua"))
    return {f"{part}/{file.name[:-4]}": file.read_text("utf-8") for file in files}


def _contract(text: str, what: str) -> tuple[str, ...]:
    """The words of a line of a verb's contract, and of those that continue it."""
    lines = re.findall(rf"^-- {what}: (.*(?:\n--   +.*)*)$", text, re.MULTILINE)
    return tuple(word for line in lines for word in line.replace("\n--", " ").split())


@cache
def _named(text: str, what: str) -> list[str]:
    """The modules that a file asks for in this way."""
    return re.findall(rf"^(?!--)[^\n]*\b{what} ?\(?'(\w+)'", text, re.MULTILINE)


def _in_order(entries: Iterable[str], needed: Callable[[str], Iterable[str]]) -> list[str]:
    """These modules and all that they need, each after those that it needs itself."""
    order: dict[str, None] = {}

    def add(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise RuntimeError(f"modules of Lua need each other: {' > '.join([*path, name])}")
        if name not in order:
            for other in needed(name):
                add(other, (*path, name))
            order[name] = None

    for entry in entries:
        add(entry, ())
    return list(order)


def _lua_list(words: Iterable[str]) -> str:
    return "{ " + ", ".join(f"'{word}'" for word in words) + " }"


def constants_in(text: str) -> str:
    """Put values where a script writes names in capitals. Strings and comments stay as they are.

    As Lua locals they would be captured by every function of every module, which took 15 us of each call.
    """
    names = constants()
    return _TOKEN.sub(lambda match: names.get(match["name"], match[0]), text)


@cache
def constants() -> dict[str, str]:
    fields = {field.upper(): str(i) for i, field in enumerate(layout.FIELDS, 1)}
    blank = "".join(f"\\{byte:03d}" for byte in msgspec.msgpack.encode(USUAL))
    batch = {f"B_{field.upper()}": str(i) for i, field in enumerate(BatchState.__struct_fields__, 1)}
    return (
        fields
        | batch
        | layout.lua_constants()
        | {
            "ALL_KEYS": _lua_list(KINDS),
            "B_FIELDS": str(len(batch)),
            "FIELDS": str(len(fields)),
            "SCHEMA": f"'{SCHEMA}'",
            "SEP": "'\\31'",
            "AFTER": "' '",
            "AT_REST": "'!\\31'",
            "SHORTEST": f"' {RANGES_MS[0]}'",
            "DELAY_BELOW": str(DELAY_BELOW),
            "USUAL_QUEUE": f"'{USUAL.queue}'",
            "USUAL_PRIORITY": f"'{USUAL.priority:02d}'",
            "USUAL_KEEP": str(USUAL.keep),
            "USUAL_RETRIES": str(USUAL.retries),
            "EVENTS": f"'{EVENTS_KEPT}'",
            "HEAD_STEP": str(HEAD_STEP),
            "STATS_MINUTES": str(STATS_MINUTES),
            "BLANK": f"'{blank}'",
            "RANGE_OF": " or ".join([*(f"ms <= {end} and ' {end}'" for end in RANGES_MS), "' more'"]),
        }
    )
