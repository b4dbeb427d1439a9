"""How a job is stored, declared once. Python reads and writes it so; the scripts' constants are made from it.

    HEAD     state, flags, length of RUN, since     every transition writes it anew
    RUN      started, fence, claim                  from the first lease on
    BODY     size, seq, created                     lease and complete leave it, and all that follows, as it is
    FORM     lengths of label, lane and rare        as the producer sent it, but for `arrival`
             label, lane
             arrival                                if there is a lane; otherwise it is `seq`
             rare
    payload                                         if it is small, and the job is neither done nor a tombstone

Numbers are big-endian. The label has the fields that most jobs of a kind share, lane the only lane that the job asks
for. All other fields are rare: a msgpack list of number, value, …, which has only what is not usual. So a new field of
`Header` needs nothing here; a version that does not know its number carries it through.
"""

from collections.abc import Iterable
from itertools import accumulate
from typing import Final, NamedTuple

from penstock.model.header import STATES, Header


class Part(NamedTuple):
    name: str
    width: int  #: in bytes


_TIME: Final = 6  #: bytes of a time in ms, or of a place in line

HEAD: Final = (Part("state", 1), Part("flags", 1), Part("run", 1), Part("since", _TIME))
RUN: Final = (Part("started", _TIME), Part("fence", 8))  #: the claim follows, up to the end of RUN
BODY: Final = (Part("size", 4), Part("seq", _TIME), Part("created", _TIME))
FORM: Final = (Part("label", 2), Part("lane", 1), Part("rare", 2))
LANED: Final = (Part("arrival", _TIME),)  #: behind a lane

LETTERS: Final = dict(zip(STATES, "SHRXDFC", strict=True))

#: Flags, each a power of two: the job owns its lock (lib/locks.lua); how its result is kept, two bits; cancelling.
OWNER, RESULT, CANCELLING = 1, 2, 8

INLINE: Final = 256  #: a payload of fewer bytes is part of the record, others are in `payloads`
LOST: Final = 2**32 - 1  #: the size of a payload that was lost
LONGEST_RARE: Final = 2**16 - 1

#: The fields that a label tells, in its order; of what is usual only the separator is left, of no batch not even that.
LABEL: Final = ("queue", "priority", "task", "keep", "retries", "batch")

FIELDS: Final = Header.__struct_fields__
USUAL: Final = Header(state="", task="")
NUMBERS: Final = {name: number for number, name in enumerate(FIELDS, 1)}
_ELSEWHERE: Final = {part.name for section in (HEAD, RUN, BODY) for part in section} | {
    *LABEL,
    "claim",
    "cancelling",
    "result",
}
#: By number, what is only stored where it is not usual. Usual is also what follows from the rest: `lanes` and `home`
#: of a job with one lane or none, `seq` as `arrival`, and as `starts` what the other counts explain.
RARE: Final = {number: name for name, number in NUMBERS.items() if name not in _ELSEWHERE}
DERIVED: Final = frozenset({"lanes", "home", "arrival", "starts"})

#: Marks of msgpack: a list of up to 15 values, and one whose length follows in two bytes.
SHORT_LIST, LONG_LIST = 0x90, 0xDC


def size(section: Iterable[Part]) -> int:
    return sum(part.width for part in section)


LONGEST_CLAIM: Final = 255 - size(RUN)


def lua_constants() -> dict[str, str]:
    """Every offset, width and format of the record by the name that the scripts have for it; positions count from 1."""
    return _positions() | _sizes_and_limits() | _formats() | _fronts_and_flags() | _tables()


def _positions() -> dict[str, str]:
    waiting = (*HEAD, *BODY, *FORM)  # of a job that never ran
    starts = accumulate((part.width for part in waiting), initial=1)
    at = dict(zip((part.name for part in waiting), starts, strict=False))
    head, run, body, form = map(size, (HEAD, RUN, BODY, FORM))
    return {
        **{f"{name.upper()}_AT": str(at[name]) for name in ("since", "size", "seq", "created")},
        "FRONT": str(at["since"] - 1),
        "RUN_AT": str(head + 1),
        "CLAIM_AT": str(head + run + 1),
        "BODY_AT": str(head + 1),
        "FORM_AT": str(at["label"]),
        "LABEL_AT": str(head + body + form + 1),
    }


def _sizes_and_limits() -> dict[str, str]:
    head, run, body, form = map(size, (HEAD, RUN, BODY, FORM))
    return {
        "HEAD_SIZE": str(head),
        "RUN_SIZE": str(run),
        "BODY_SIZE": str(body),
        "FORM_SIZE": str(form),
        "ARRIVAL_SIZE": str(size(LANED)),
        "SHORTEST_RECORD": str(head + body + form),
        "INLINE": str(INLINE),
        "LOST": str(LOST),
        "LONGEST_LANE": str(2 ** (8 * FORM[1].width) - 1),
        "LONGEST_RARE": str(LONGEST_RARE),
        "LONGEST_CLAIM": str(LONGEST_CLAIM),
        "SHORT_LIST": str(SHORT_LIST),
        "LONG_LIST": str(LONG_LIST),
    }


def _formats() -> dict[str, str]:
    return {
        "TIME_FORMAT": _format([HEAD[-1]]),
        "HEAD_FORMAT": _format(HEAD),
        "RUN_FORMAT": _format(RUN),
        "FENCE_FORMAT": _format([RUN[-1]]),
        "SIZE_FORMAT": _format([BODY[0]]),
        "BODY_FORMAT": _format(BODY),
        "FORM_FORMAT": _format(FORM),
        "BODY_AND_FORM": _format([*BODY, *FORM]),
        "SINCE_AND_SIZE": _format([HEAD[-1], BODY[0]]),
        "SINCE_TO_CREATED": _format([HEAD[-1], *BODY]),
        "SINCE_TO_RARE": _format([HEAD[-1], *BODY, *FORM]),
    }


def _fronts_and_flags() -> dict[str, str]:
    return {
        **{f"IS_{state.upper()}": _text(LETTERS[state]) for state in STATES},
        "READY_FRONT": _text(f"{LETTERS['ready']}\0\0"),
        "OWNER_FRONT": _text(f"{LETTERS['ready']}{chr(OWNER)}\0"),
        "HELD_FRONT": _text(f"{LETTERS['held']}\0\0"),
        "RESULT_FLAG": str(RESULT),
        "CANCELLING_FLAG": str(CANCELLING),
        "OWNER_FLAG": str(OWNER),
    }


def _tables() -> dict[str, str]:
    return {
        "LETTER_OF_STATE": "{ " + ", ".join(f"{state} = {_text(letter)}" for state, letter in LETTERS.items()) + " }",
        "STATE_OF_LETTER": "{ " + ", ".join(f"[{ord(letter)}] = '{state}'" for state, letter in LETTERS.items()) + " }",
        "TYPE_OF_RARE": "{ " + ", ".join(f"[{number}] = '{_lua_type(name)}'" for number, name in RARE.items()) + " }",
        "HEADER_VALUES": _header_values(),
        "ADD_RARE_VALUES": _rare_values(),
    }


def _header_values() -> str:
    """A header in Lua: what a label tells is that of `kind`, what has a place of its own is in a local of its name."""

    def value(name: str) -> str:
        if name in LABEL:
            return f"kind[{NUMBERS[name]}]"
        if name == "lanes":
            return "specs"  # `lanes` is the name of a key
        return name if name in _ELSEWHERE | DERIVED else _literal(name)

    return ", ".join(map(value, FIELDS))


def _rare_values() -> str:
    """Adds the number and value of each rare field of h that is not usual to the list `rare`, of which n are there."""
    return " ".join(
        f"if h[{number}] ~= {_literal(name)} then n = n + 2 rare[n - 1], rare[n] = {number}, h[{number}] end"
        for number, name in RARE.items()
        if name not in DERIVED
    )


def _lua_type(name: str) -> str:
    return {int: "number", str: "string", list: "table"}[type(getattr(USUAL, name))]


def _literal(name: str) -> str:
    return repr(getattr(USUAL, name))


def _text(text: str) -> str:
    return "'" + "".join(letter if letter.isalpha() else f"\\{ord(letter)}" for letter in text) + "'"


def _format(section: Iterable[Part]) -> str:
    return "'>" + "".join("B" if part.width == 1 else f"I{part.width}" for part in section) + "'"
