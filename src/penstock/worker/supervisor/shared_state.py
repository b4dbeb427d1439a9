"""What a worker process notes in memory that it shares with its supervisor, so that it outlives the process.

A few fields about the process and how long its jobs ran, then a slot per started job. A slot's mark is written last and
taken away first, so that whenever the process dies, each marked slot names a job that had really started and whose end
the server may not know yet.
"""

import mmap
import os
import struct
import tempfile
import time
from bisect import bisect_left
from typing import Final, NamedTuple

from penstock.model.durations import DURATION_BUCKETS

STARTING: Final = 0
UP: Final = 1
LEFT: Final = 2  #: it ended as it should: whatever it still holds is given back, uncharged

_HERE: Final = 1
_APART: Final = 2

_HEAD: Final = 512
_SLOT: Final = 640
_MOMENT: Final = struct.Struct("<d")
_TEXT: Final = struct.Struct("<H")
_TIMES: Final = struct.Struct("<ddH")  #: since when, until when at most (0: no limit), length of the id
_UNTIL: Final = struct.Struct("<d")
_COUNT: Final = struct.Struct("<Q")
_AT_STATE, _AT_BEAT, _AT_NAME = 0, 8, 16
_AT_VALID = 312
_AT_SECONDS, _AT_RUNS = 320, 328  #: of the whole, and how many runs were in which range
_AT_TIMES, _AT_UNTIL, _AT_ID = 8, 16, 32


class Runs(NamedTuple):
    """How many jobs ran for how long: a count for each range and one above all, and all seconds together."""

    counts: list[int]
    seconds: float


class Started(NamedTuple):
    """A job that had started; times of the monotonic clock."""

    id: str
    since: float
    until: float  #: its timeout; 0 if it has none, or has ended and is not settled yet
    is_apart: bool  #: in a process of its own: it has no part in the death of this one


class SharedState:
    """Memory of one process: it writes, its supervisor reads."""

    def __init__(self, file: int, slots: int) -> None:
        size = _HEAD + slots * _SLOT
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
        self._memory = mmap.mmap(file, size)
        self._slots = slots
        self._free = list(range(slots - 1, -1, -1))
        self._begun = [0.0] * slots
        self._runs = [0] * (len(DURATION_BUCKETS) + 1)
        self._seconds = 0.0

    @staticmethod
    def make_file() -> int:
        """A file without a name; whoever maps it gives it its size."""
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())

    def close(self) -> None:
        self._memory.close()

    # The process

    @property
    def state(self) -> int:
        return self._memory[_AT_STATE]

    @state.setter
    def state(self, state: int) -> None:
        self._memory[_AT_STATE] = state

    @property
    def worker(self) -> str:
        """The name under which it leases at present."""
        (length,) = _TEXT.unpack_from(self._memory, _AT_NAME)
        return self._memory[_AT_NAME + 2 : _AT_NAME + 2 + length].decode()

    @worker.setter
    def worker(self, name: str) -> None:
        raw = name.encode()
        self._memory[_AT_NAME : _AT_NAME + 2 + len(raw)] = _TEXT.pack(len(raw)) + raw

    def beat(self) -> None:
        """Its loop still turns."""
        _MOMENT.pack_into(self._memory, _AT_BEAT, time.monotonic())

    @property
    def last_beat(self) -> float:
        found: float = _MOMENT.unpack_from(self._memory, _AT_BEAT)[0]
        return found

    @property
    def valid_until(self) -> float:
        """Until when nobody takes its jobs for sure; its supervisor, which renews, goes on noting it."""
        found: float = _MOMENT.unpack_from(self._memory, _AT_VALID)[0]
        return found

    @valid_until.setter
    def valid_until(self, moment: float) -> None:
        _MOMENT.pack_into(self._memory, _AT_VALID, moment)

    # Its jobs

    def begin(self, job_id: str, timeout: float = 0, *, apart: bool = False) -> int:
        """Note that a job starts, and how many seconds it may take at most; the slot that says so."""
        if not self._free:
            return -1
        slot = self._free.pop()
        at, raw, now = _HEAD + slot * _SLOT, job_id.encode(), time.monotonic()
        memory = self._memory
        _TIMES.pack_into(memory, at + _AT_TIMES, now, now + timeout if timeout else 0.0, len(raw))
        memory[at + _AT_ID : at + _AT_ID + len(raw)] = raw
        memory[at] = _APART if apart else _HERE
        self._begun[slot] = now
        return slot

    def move_here(self, slot: int) -> None:
        """It ran in a process of its own; what it returned is handled in this one."""
        if slot >= 0:
            self._memory[_HEAD + slot * _SLOT] = _HERE

    def ran(self, slot: int, *, apart: bool = False) -> None:
        """Its function has ended. The mark stands until the server knows: what it left may still kill this process."""
        if slot >= 0:
            self._memory[_HEAD + slot * _SLOT] = _APART if apart else _HERE
            _UNTIL.pack_into(self._memory, _HEAD + slot * _SLOT + _AT_UNTIL, 0.0)
            self._count(time.monotonic() - self._begun[slot])

    def end(self, slot: int) -> None:
        """The server knows how it ended."""
        if slot >= 0:
            self._memory[_HEAD + slot * _SLOT] = 0
            self._free.append(slot)

    def _count(self, seconds: float) -> None:
        which = bisect_left(DURATION_BUCKETS, seconds)
        self._runs[which] += 1
        self._seconds += seconds
        _COUNT.pack_into(self._memory, _AT_RUNS + 8 * which, self._runs[which])
        _MOMENT.pack_into(self._memory, _AT_SECONDS, self._seconds)

    def runs(self) -> Runs:
        """How long those whose function ended had run."""
        counts = [
            _COUNT.unpack_from(self._memory, _AT_RUNS + 8 * which)[0] for which in range(len(DURATION_BUCKETS) + 1)
        ]
        return Runs(counts, _MOMENT.unpack_from(self._memory, _AT_SECONDS)[0])

    def started(self) -> list[Started]:
        """Every job that had started and was not settled."""
        return [self._read(at) for at in range(_HEAD, _HEAD + self._slots * _SLOT, _SLOT) if self._memory[at]]

    def _read(self, at: int) -> Started:
        since, until, length = _TIMES.unpack_from(self._memory, at + _AT_TIMES)
        job_id = self._memory[at + _AT_ID : at + _AT_ID + length].decode("utf-8", "replace")
        return Started(job_id, since, until, self._memory[at] == _APART)


def slots_for(concurrency: int) -> int:
    """Four times as many as run at once.

    Jobs that were lost to another worker may still run while their slots are filled again, and of both those that have
    ended keep their marks while they are settled and the next ones already run.
    """
    return 4 * concurrency + 16
