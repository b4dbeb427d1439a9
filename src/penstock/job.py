"""A job as data: what a header says, and the words for the states it passes through."""

import os
import time
from functools import lru_cache
from typing import Literal, get_args

import msgspec

State = Literal["scheduled", "held", "ready", "running", "done", "dead", "cancelled"]
STATES: tuple[State, ...] = get_args(State)
FINISHED: frozenset[State] = frozenset({"done", "dead", "cancelled"})
WAITING: frozenset[State] = frozenset({"scheduled", "held", "ready"})

#: A time given to the engine below this many milliseconds is a delay from server time, otherwise an instant.
DELAY_BELOW = 10**12

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


class Header(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the scripts know of a job, in the order in which it is stored.

    The Lua constants of the same names are made from this list, so it is the one place that fixes the layout.
    Times are milliseconds of the server's clock, 0 for never. New fields go to the end and need a default.
    """

    state: State | Literal[""]
    task: str
    queue: str = "default"
    priority: int = 50
    seq: int = 0  #: place in line, given at the tail of `ready`; release and reap keep it, so they return to the head
    created: int = 0
    since: int = 0  #: when the present state was entered; for a finished job, when it finished
    due: int = 0
    expires: int = 0
    unique: str = ""
    batch: str = ""
    lanes: list[str] = []
    nonce: str = (
        ""  #: of the enqueue call that made it: tells a resent call from another producer's; empty for generated ids
    )
    size: int = 0  #: bytes of the payload, so that lease can bound its page before it reads them
    keep: int = 3_600_000  #: how long the result is kept
    retries: int = 3
    failures: int = 0
    crashes: int = 0
    starts: int = 0
    releases: int = 0  #: starts that used no attempt: starts = failures + crashes + releases + [running or done]
    generation: int = 0  #: how often it was revived
    claim: str = ""  #: worker and call number of the running attempt
    last: str = ""  #: claim, verb and answer of the last settled attempt, to answer a resent settle
    fence: int = 0
    started: int = 0
    cancelling: int = 0
    result: int = 0  #: 0 returned nothing, 1 kept under `results`, 2 not kept
    reason: str = ""  #: why it is dead, cancelled or put off
    progress: str = ""  #: JSON
    compact: int = 0  #: 1 for a tombstone: only identity and outcome are left

    @property
    def attempt(self) -> int:
        """The number of the running attempt, or of the last one; 0 before the first."""
        return self.failures + self.crashes + (self.state in {"running", "done"})


class Attempt(msgspec.Struct, array_like=True, frozen=True):
    """One failed try of a job, as the scripts keep it."""

    number: int
    started: int
    ended: int
    worker: str
    outcome: str
    error: str  #: JSON


def new_id() -> str:
    """A fresh id of 22 characters that sorts by time: milliseconds in base 36, then 56 bits of randomness."""
    return _stamp(time.time_ns() // 1_000_000) + os.urandom(7).hex()


@lru_cache(maxsize=1)
def _stamp(milliseconds: int) -> str:
    digits = []
    for _ in range(8):
        milliseconds, digit = divmod(milliseconds, 36)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
