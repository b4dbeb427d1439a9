"""Memory that a child shares with its supervisor, so that its contents outlive the child.

A few fields about the process and how long its jobs ran, then a slot per started job. A slot's mark is written last and
cleared first: whenever the process dies, each marked slot names a job that had really started and whose end the server
may not know yet.
"""

import mmap
import os
import struct
import tempfile
import time
from bisect import bisect_left
from typing import Final, NamedTuple

from penstock.model.durations import DURATION_BUCKETS

STATE_UP: Final = 1
STATE_LEFT: Final = 2  #: a clean end: jobs that it still holds are released, uncharged

_MARK_HERE: Final = 1
_MARK_APART: Final = 2

_HEAD_BYTES: Final = 512
_SLOT_BYTES: Final = 640
_DOUBLE: Final = struct.Struct("<d")
_LENGTH: Final = struct.Struct("<H")
_TIMES: Final = struct.Struct("<ddH")  #: start, end of its timeout (0: none), length of the id
_UNTIL: Final = struct.Struct("<d")
_UINT64: Final = struct.Struct("<Q")
_AT_STATE, _AT_BEAT, _AT_NAME = 0, 8, 16
_AT_VALID = 312
_AT_SECONDS, _AT_RUNS = 320, 328  #: seconds of all runs, and how many runs fell into each bucket
_AT_TIMES, _AT_UNTIL, _AT_ID = 8, 16, 32


class Runs(NamedTuple):
    """A histogram of how long jobs ran: a count for each bucket and one above all, and the sum of seconds."""

    counts: list[int]
    seconds: float


class Started(NamedTuple):
    """A job that had started; times of the monotonic clock."""

    id: str
    since: float
    until: float  #: the end of its timeout; 0 if it has none, or has ended and is not settled yet
    is_apart: bool  #: in a process of its own, so it is not to blame if this one dies


class SharedState:
    """Memory of one process: it writes, its supervisor reads."""

    def __init__(self, file: int, slots: int) -> None:
        size = _HEAD_BYTES + slots * _SLOT_BYTES
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
        self._memory = mmap.mmap(file, size)
        self._slots = slots
        self._free = list(range(slots - 1, -1, -1))
        self._start_times = [0.0] * slots
        self._runs = [0] * (len(DURATION_BUCKETS) + 1)
        self._seconds = 0.0

    @staticmethod
    def make_file() -> int:
        """A file without a name; the first to map it gives it its size."""
        if hasattr(os, "memfd_create"):  # Linux: a container may have no directory that can be written to
            return os.memfd_create("penstock")
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
        (length,) = _LENGTH.unpack_from(self._memory, _AT_NAME)
        return self._memory[_AT_NAME + 2 : _AT_NAME + 2 + length].decode()

    @worker.setter
    def worker(self, name: str) -> None:
        raw = name.encode()
        self._memory[_AT_NAME : _AT_NAME + 2 + len(raw)] = _LENGTH.pack(len(raw)) + raw

    def beat(self) -> None:
        """Note that its loop still turns."""
        _DOUBLE.pack_into(self._memory, _AT_BEAT, time.monotonic())

    @property
    def last_beat(self) -> float:
        moment: float = _DOUBLE.unpack_from(self._memory, _AT_BEAT)[0]
        return moment

    @property
    def valid_until(self) -> float:
        """Until then no other worker takes its jobs; its supervisor writes it after each renewal."""
        moment: float = _DOUBLE.unpack_from(self._memory, _AT_VALID)[0]
        return moment

    @valid_until.setter
    def valid_until(self, moment: float) -> None:
        _DOUBLE.pack_into(self._memory, _AT_VALID, moment)

    # Its jobs

    def mark_started(self, job_id: str, timeout: float = 0, *, apart: bool = False) -> int:
        """Note that a job starts, with its timeout in seconds; the slot, or -1 if there is none."""
        if not self._free:
            return -1
        slot = self._free.pop()
        at, raw, now = _HEAD_BYTES + slot * _SLOT_BYTES, job_id.encode(), time.monotonic()
        memory = self._memory
        _TIMES.pack_into(memory, at + _AT_TIMES, now, now + timeout if timeout else 0.0, len(raw))
        memory[at + _AT_ID : at + _AT_ID + len(raw)] = raw
        memory[at] = _MARK_APART if apart else _MARK_HERE
        self._start_times[slot] = now
        return slot

    def mark_here(self, slot: int) -> None:
        """The job ran in a process of its own; from now on its result is handled in this process."""
        if slot >= 0:
            self._memory[_HEAD_BYTES + slot * _SLOT_BYTES] = _MARK_HERE

    def mark_returned(self, slot: int, *, apart: bool = False) -> None:
        """The job's function has ended. Its mark stays until it is settled: the job may still kill this process."""
        if slot >= 0:
            self._memory[_HEAD_BYTES + slot * _SLOT_BYTES] = _MARK_APART if apart else _MARK_HERE
            _UNTIL.pack_into(self._memory, _HEAD_BYTES + slot * _SLOT_BYTES + _AT_UNTIL, 0.0)
            self._count_run(time.monotonic() - self._start_times[slot])

    def clear(self, slot: int) -> None:
        """The server knows how it ended."""
        if slot >= 0:
            self._memory[_HEAD_BYTES + slot * _SLOT_BYTES] = 0
            self._free.append(slot)

    def _count_run(self, seconds: float) -> None:
        bucket = bisect_left(DURATION_BUCKETS, seconds)
        self._runs[bucket] += 1
        self._seconds += seconds
        _UINT64.pack_into(self._memory, _AT_RUNS + 8 * bucket, self._runs[bucket])
        _DOUBLE.pack_into(self._memory, _AT_SECONDS, self._seconds)

    def runs(self) -> Runs:
        """How long jobs ran whose function has ended."""
        counts = [
            _UINT64.unpack_from(self._memory, _AT_RUNS + 8 * bucket)[0] for bucket in range(len(DURATION_BUCKETS) + 1)
        ]
        return Runs(counts, _DOUBLE.unpack_from(self._memory, _AT_SECONDS)[0])

    def started(self) -> list[Started]:
        """Every job that has started and is not settled."""
        return [
            self._read(at)
            for at in range(_HEAD_BYTES, _HEAD_BYTES + self._slots * _SLOT_BYTES, _SLOT_BYTES)
            if self._memory[at]
        ]

    def _read(self, at: int) -> Started:
        since, until, length = _TIMES.unpack_from(self._memory, at + _AT_TIMES)
        job_id = self._memory[at + _AT_ID : at + _AT_ID + length].decode("utf-8", "replace")
        return Started(job_id, since, until, self._memory[at] == _MARK_APART)


def slots_for(concurrency: int) -> int:
    """Four times as many as run at once.

    Jobs that were lost to another worker may still run while their places are filled again. And jobs of either kind
    that have ended keep their slots while they are settled and the next ones already run.
    """
    return 4 * concurrency + 16
