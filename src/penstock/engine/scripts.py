"""The scripts: one Lua file per verb, put together with the pieces that it includes.

A file's leading comment says what is put in front of it: `flags:` for the server, `keys:` that it touches besides
those of its pieces, `include:` the pieces, flat and in order. `kept:` has it made into a function, too, as every job
goes through it (functions.py); `few:` names the piece up to which a call may be answered that brings only the keys of
those pieces; `unchecked` leaves out the check of the schema version.
What a piece defines for itself alone is put into a block of its own: Lua has room for 200 local names at a time. What
comes after `on demand: name` becomes the body of a function of that name, which makes it when it is first called:
making the hundred functions of a script takes longer than one job does. All of it is the body of one function: a name
from outside of that is found at once by the functions in it, one from inside only by a search.
Words in capitals are constants: the header's fields by name; SEP, which ends each part of a lexical member (no name may
hold a control character); AFTER, the byte that follows it: [name SEP, (name AFTER is all that begins with name SEP.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from penstock.engine.functions import library, words_of
from penstock.engine.keys import HEAD_STEP
from penstock.engine.record import layout
from penstock.engine.record.layout import USUAL
from penstock.model.batch_state import BatchState
from penstock.model.durations import DURATION_BUCKETS
from penstock.model.header import DELAY_BELOW

SCHEMA: Final = "5"
EVENTS_KEPT: Final = 10_000
STATS_MINUTES: Final = 120
RANGES_MS: Final = tuple(round(bound * 1000) for bound in DURATION_BUCKETS)

_REAL_TIME: Final = """\
local call = redis.call
local ARGC = #ARGV
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
"""
# For tests: the last two arguments are a now in ms and the number of the redis.call at which to stop (0: never). A key
# that was not declared stops the script, too.
_TEST_TIME: Final = """\
local ARGC = #ARGV - 2
local now = tonumber(ARGV[ARGC + 1])
local now_us = now * 1000
local stop, made, declared = tonumber(ARGV[ARGC + 2]), 0, {}
for _, key in ipairs(KEYS) do declared[key] = true end
local function call(command, key, ...)
  made = made + 1
  if made == stop then error('stopped at call ' .. made) end
  if not declared[key] and command ~= 'SPUBLISH' and command ~= 'PUBSUB' then error('undeclared key ' .. key) end
  return redis.call(command, key, ...)
end
"""
_CHECK: Final = """\
local schema, seq_before, fence_before, halted_now, accepted_before, \
asleep_before, settings_before, uneven_now, headed_before =
  unpack(call('HMGET', meta, 'schema', 'seq', 'fence', 'halted', 'accepted', 'asleep', 'settings', 'uneven', 'headed'))
if schema ~= SCHEMA then return redis.error_reply('PENSTOCKSCHEMA ' .. (schema or 'missing')) end
"""
_TOKEN: Final = re.compile(
    r"""'(?:\\.|[^'\\\n])*' | "(?:\\.|[^"\\\n])*" | --[^\n]* | \b(?P<name>[A-Z][A-Z0-9_]*)\b""", re.VERBOSE
)
_DEFINITION: Final = re.compile(r"^local (?P<function>function )?(?P<names>\w+(?:, \w+)*)(?P<given> =)?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One verb as the server runs it."""

    name: str
    text: str
    sha: str
    keys: tuple[str, ...]
    function: str = ""  #: its name, if the server is to keep it as one, and the library that it is in
    library: str = ""
    few: int = 0  #: keys that are enough for calls which take the short way, if it has one


class Scripts(Mapping[str, Script]):
    """All scripts by verb, each put together when it is first asked for: all of them take a quarter of a second."""

    def __init__(self, *, test: bool) -> None:
        folder = resources.files("penstock.engine").joinpath("lua")
        self._pieces = {file.name[:-4]: file.read_text("utf-8") for file in folder.joinpath("lib").iterdir()}
        files = (file for file in folder.iterdir() if file.name.endswith(".lua"))
        self._verbs = dict(sorted((file.name[:-4], file.read_text("utf-8")) for file in files))
        self._made: dict[str, Script] = {}
        self._test = test

    def __getitem__(self, verb: str) -> Script:
        made = self._made.get(verb)
        if made is None:
            made = self._made[verb] = _assemble(verb, self._verbs[verb], self._pieces, test=self._test)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._verbs)

    def __len__(self) -> int:
        return len(self._verbs)

    def kept(self) -> list[Script]:
        """Those that the server is to keep as functions."""
        return [self[verb] for verb, text in self._verbs.items() if _declared(text, "kept")]


@cache
def load(*, test: bool = False) -> Scripts:
    """All scripts; the test build takes its time and a place to stop from its arguments."""
    return Scripts(test=test)


def _assemble(name: str, verb: str, pieces: dict[str, str], *, test: bool) -> Script:
    names = _declared(verb, "include")
    included = [pieces[piece] for piece in names]
    keys = _keys(*included, verb)
    few = len(_keys(*included[: names.index(last[0]) + 1])) if (last := _declared(verb, "few")) else 0
    time = _TEST_TIME if test else _REAL_TIME
    parts = [
        " flags=".join(["#!lua", *_flags(verb)]),
        f"local {', '.join(keys)} = {', '.join(f'KEYS[{i}]' for i in range(1, len(keys) + 1))}",
        time,
        "" if "\n-- unchecked" in verb else _CHECK,
        "return (function()",
        *(_in_block(piece, _used(piece, *included[i + 1 :], verb)) for i, piece in enumerate(included)),
        verb,
        "end)()",
    ]
    text = "\n".join(map(constants_in, parts))
    sha = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324  (EVALSHA's own hash)
    if not _declared(verb, "kept"):
        return Script(name, text, sha, keys)
    files = [*map(constants_in, [*included, verb])]
    function, library_text = library(name, _flags(verb), keys, time, constants_in(_CHECK), files)
    return Script(name, text, sha, keys, function, library_text, few)


def _keys(*parts: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(["meta"] + [key for part in parts for key in _declared(part, "keys")]))


def _used(piece: str, *rest: str) -> frozenset[str]:
    """What a piece defines and the rest of the script uses."""
    return _defined(piece).intersection(frozenset[str]().union(*map(words_of, rest)))


@cache
def _defined(piece: str) -> frozenset[str]:
    return frozenset(name for found in re.finditer(_DEFINITION, piece) for name in words_of(found["names"]))


@cache  # a piece is in many scripts, and every program that starts puts them together
def _in_block(piece: str, used: frozenset[str]) -> str:
    """A piece of which only those names are seen outside that the rest of the script uses."""
    shared: list[str] = []

    def without_local(found: re.Match[str]) -> str:
        names = re.findall(r"\w+", found["names"])
        if used.isdisjoint(names):
            return found[0]
        shared.extend(names)
        if found["function"]:
            return f"function {found['names']}"
        return f"{found['names']} =" if found["given"] else ""

    at_once, _, name_and_later = re.sub(_DEFINITION, without_local, piece).partition("-- on demand: ")
    name, _, later = name_and_later.partition("\n")
    if name:
        at_once += f"local made = false\nfunction {name}()\nif made then return end\nmade = true\n{later}\nend"
        shared.append(name)
    names = f"local {', '.join(shared)}\n" if shared else ""
    return f"{names}do\n{at_once}\nend"


def _declared(text: str, what: str) -> list[str]:
    return [word for line in re.findall(rf"^-- {what}: (.*)$", text, re.MULTILINE) for word in line.split()]


def _flags(verb: str) -> list[str]:
    """For the server: what runs although it is full."""
    return [flag for flag in _declared(verb, "flags") if flag == "allow-oom"]


@cache
def constants_in(text: str) -> str:
    """Put values where the scripts write names: the header's fields, and what both sides must agree on.

    As Lua locals they would be captured by every function of every piece, which took 15 us of each call. Strings and
    comments stay as they are.
    """
    names = _constants()
    return _TOKEN.sub(lambda found: names.get(found["name"], found[0]), text)


@cache
def _constants() -> dict[str, str]:
    fields = {field.upper(): str(i) for i, field in enumerate(layout.FIELDS, 1)}
    blank = "".join(f"\\{byte:03d}" for byte in msgspec.msgpack.encode(USUAL))
    batch = {f"B_{field.upper()}": str(i) for i, field in enumerate(BatchState.__struct_fields__, 1)}
    return (
        fields
        | batch
        | layout.lua_constants()
        | {
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
