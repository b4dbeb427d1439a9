"""The verbs that every job goes through, as functions that the server keeps.

A script makes its hundred functions and its tables anew in every call, which takes longer than one job does. Here the
same files become a library: functions are made once, when it is loaded; every other statement at the beginning of a
line is run by each call, in its order. So each call begins with fresh values, whatever the one before it left behind.
Only a table whose line says `-- kept:` stays as it was left: what was worked out once and is the same for every call.
A piece may return the answer: then the call ends there.
A name has the hash of its text in it: versions that share a server do not meet.
"""

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from typing import Final

_FUNCTION: Final = re.compile(r"^(?:local )?function (?P<name>[\w.]+)")
_LOCAL: Final = re.compile(r"^local (?P<names>\w+(?:, \w+)*)(?P<given> =)?")
# A function finds the names of Lua itself only once it runs, through a table behind a table. To look there once, not
# each time, takes 3 % off a call.
_GLOBALS: Final = "string, math, table, struct, cmsgpack, tonumber, type, ipairs, pairs, next, unpack, pcall, error"
_EMPTY_TABLE: Final = re.compile(r"^(\w+) = \{\}(?:\s*--.*)?$")
_KEPT: Final = re.compile(r"-- kept\b")  # between calls, on purpose
_ENDS: Final = re.compile(r"\bend\s*(?:--.*)?$")
_ON_DEMAND: Final = re.compile(r"^-- on demand: (\w+)$", re.MULTILINE)


class Part:
    """A file of Lua, taken apart: what is made once, what each call does, and the names that both share."""

    def __init__(self, text: str, kits: frozenset[str] = frozenset()) -> None:
        """Kits are tables that functions are put into: they are made once, too."""
        self.names: dict[str, None] = {}
        self.once: list[str] = []
        self.each_call: list[str] = []
        inside = False
        for line in text.splitlines():
            if inside:
                self.once.append(line)
                inside = not line.startswith("end")
            elif found := _FUNCTION.match(line):
                self._define(line, found["name"])
                inside = not _ENDS.search(line)
            elif found := _LOCAL.match(line):
                self._assign(line, found, kits)
            elif not line.startswith("--"):
                self.each_call.append(line)
        for name in _ON_DEMAND.findall(text):
            self._define(f"function {name}() end", name)

    def _define(self, line: str, name: str) -> None:
        if "." not in name:
            self.names[name] = None
        self.once.append(line.removeprefix("local "))

    def _assign(self, line: str, found: re.Match[str], kits: frozenset[str]) -> None:
        self.names |= dict.fromkeys(re.findall(r"\w+", found["names"]))
        statement = line.removeprefix("local ")
        if not found["given"]:
            statement = f"{found['names']} = nil" + line[found.end() :]
        elif table := _EMPTY_TABLE.match(statement):  # most are still empty: not to make them anew takes 2 to 5 % off
            self.once.append(statement)
            stays = table[1] in kits or _KEPT.search(line)
            statement = "" if stays else f"if next({table[1]}) then {table[1]} = {{}} end"
        self.each_call.append(statement)


def library(
    verb: str, flags: Iterable[str], keys: Iterable[str], time: str, check: str, files: list[str]
) -> tuple[str, str]:
    """Name and text of the library for a verb; the last file is its own, those before it the pieces it includes."""
    flagged = ", ".join(f"'{flag}'" for flag in flags)
    kits = frozenset(re.findall(r"^function (\w+)\.", "\n".join(files), re.MULTILINE))
    clock, checks, *parts = (Part(text, kits) for text in [time, check, *files])
    body = "\n".join(
        [
            f"local function known() return {_GLOBALS} end",
            f"local {_GLOBALS}",
            f"local KEYS, ARGV, {', '.join([*keys, *checks.names])}",
            "local run = (function()",  # a function of its own: each has room for 200 names
            "local begins = {}",
            *_block(clock, frozenset(clock.names), "begins[1]"),
            *_pieces(parts[:-1], files),
            *_block(parts[-1], frozenset(), "begins[#begins + 1]"),
            "return function(keys, args)",
            f"if not string then {_GLOBALS} = known() end",
            "KEYS, ARGV = keys, args",
            f"{', '.join(keys)} = unpack(keys)",
            "begins[1]()",
            *checks.each_call,
            "for i = 2, #begins - 1 do",
            "local answer = begins[i]()",
            "if answer then return answer end",
            "end",
            "return begins[#begins]()",
            "end",
            "end)()",
        ]
    )
    name = f"penstock_{verb}_{hashlib.sha256((flagged + body).encode()).hexdigest()[:12]}"
    registered = f"redis.register_function{{ function_name = '{name}', callback = run, flags = {{ {flagged} }} }}"
    return name, f"#!lua name={name}\n{body}\n{registered}\n"


def _pieces(parts: list[Part], files: list[str]) -> Iterable[str]:
    for i, part in enumerate(parts):
        rest = frozenset[str]().union(*map(words_of, files[i + 1 :]))
        yield from _block(part, rest, "begins[#begins + 1]")


@cache
def words_of(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


def _block(part: Part, used: frozenset[str], begin: str) -> Iterable[str]:
    """One part, of which only those names are seen outside that others use."""
    shared = [name for name in part.names if name in used]
    own = [name for name in part.names if name not in used]
    yield f"local {', '.join(shared)}" if shared else ""
    yield "do"
    yield f"local {', '.join(own)}" if own else ""
    yield from part.once
    if any(part.each_call):
        yield f"{begin} = function()"
        yield from part.each_call
        yield "end"
    yield "end"
