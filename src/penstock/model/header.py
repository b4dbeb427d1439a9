"""A job as data: its header, its states and its id."""

import os
import secrets
from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

State = Literal["scheduled", "held", "ready", "running", "done", "dead", "cancelled"]
STATES: tuple[State, ...] = get_args(State)
FINISHED: frozenset[State] = frozenset({"done", "dead", "cancelled"})
WAITING: frozenset[State] = frozenset({"scheduled", "held", "ready"})

#: The engine reads a time below this many milliseconds as a delay, otherwise as an instant.
DELAY_BELOW = 10**12


class Header(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The fields of a job that the scripts know, in the order in which they are stored.

    The Lua constants of the same names are made from this list, so it is the one place that fixes the layout.
    Times are milliseconds of the server's clock, 0 for never. New fields go to the end and need a default: a version
    that does not know a field carries it through (engine/record/layout.py).
    """

    state: State | Literal[""]
    task: str
    queue: str = "default"
    priority: int = 50
    seq: int = 0  #: place in the queue, given at its tail; release and reap keep it, so the job returns to the head
    since: int = 0  #: when the present state was entered; for a finished job, when it finished
    expires: int = 0
    unique: str = ""
    keep: int = 3_600_000  #: how long the result is kept
    size: int = 0  #: bytes of the payload, so that lease can bound its page before it reads payloads; -1: it was lost
    failures: int = 0
    crashes: int = 0
    lanes: list[str] = []  #: name, limit, rate, burst, kind and cost of each; a lock is only a name
    home: int = 0  #: number of the lane under which it waits: held there, or ready as one of the lane's next jobs
    turn: int = 0  #: number of the ordered lane that it keeps while it waits to run again
    arrival: int = 0  #: place among the jobs of its lanes; becoming ready changes seq, but not this
    batch: str = ""
    claim: str = ""  #: worker and call number of the running attempt
    started: int = 0
    created: int = 0
    due: int = 0
    nonce: str = ""  #: of the enqueue call: tells a resent call from one of another producer; empty for generated ids
    retries: int = 3
    starts: int = 0
    releases: int = (
        0  #: starts that used no attempt: starts = failures + crashes + releases + 1 while it runs or if it is done
    )
    generation: int = 0  #: how often it was revived
    last: str = ""  #: claim, verb and answer of the last settled attempt, to answer a resent settle
    fence: int = 0
    cancelling: int = 0
    result: int = 0  #: 0 returned nothing, 1 kept under `results`, 2 not kept
    reason: str = ""  #: why it is dead, cancelled or put off
    progress: str = ""  #: JSON
    compact: int = 0  #: 1 for a tombstone: only identity and outcome are left
    death: str = ""  #: fingerprint of the error that it died of; other dead jobs may have the same
    finish: int = 0  #: its finish number in its batch, while it is dead or cancelled and may yet run again

    @property
    def attempt(self) -> int:
        """The number of the running attempt, or of the last one; 0 before the first."""
        ended = self.failures + self.crashes
        cut_short = self.state == "cancelled" and self.starts > ended + self.releases  # it was cancelled while it ran
        return ended + (cut_short or self.state in {"running", "done"})


class Attempt(msgspec.Struct, array_like=True, frozen=True):
    """One failed attempt of a job, as the scripts store it."""

    number: int
    started: int
    ended: int
    worker: str
    outcome: str
    error: str  #: JSON


_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class _IdGenerator:
    """Generates ids, 3,844 at a time. Two ids are equal only if two processes drew the same 47 bits.

    Threads and signal handlers may ask at any moment: `pop` and `next` are atomic, so no id is given out twice, and no
    lock is needed.
    """

    def __init__(self) -> None:
        self._pairs = [first + second for first in _DIGITS for second in _DIGITS]
        self.reset()

    def reset(self) -> None:
        """Draw again after a fork, which would continue with the ids of its parent."""
        self._ready: list[str] = []  #: the next at the end
        self._starts: Iterator[str] = iter(())

    def new(self) -> str:
        """A fresh id of 12 characters: eight that this process drew at random, and a count that starts anywhere.

        One character more would take 16 bytes of the server's memory for each job.
        """
        try:
            return self._ready.pop()
        except IndexError:
            return self._more()

    def _more(self) -> str:
        start = next(self._starts, "")
        while not start:
            drawn = "".join(secrets.choice(_DIGITS) for _ in range(8))
            self._starts = map(drawn.__add__, self._pairs[secrets.randbelow(len(self._pairs)) :])
            start = next(self._starts, "")
        first, *others = [start + pair for pair in self._pairs]
        self._ready.extend(reversed(others))
        return first


_ids = _IdGenerator()
os.register_at_fork(after_in_child=_ids.reset)
new_id: Final = _ids.new
