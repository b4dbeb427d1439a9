"""When each job started: shared memory with a place for every job's number, which any process may write.

A job costs one store of eight bytes here, whatever runs it: a loop, a thread, a forked process.
"""

import mmap
import time
from pathlib import Path
from typing import Final

PLACES: Final = 2_000_000


class Marks:
    """`marks.start(number)` in a job; the harness reads what was written."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._times = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")

    @classmethod
    def create(cls, path: Path) -> "Marks":
        with path.open("wb") as file:
            file.truncate(PLACES * 8)  # sparse: only what is written takes room
        return cls(path)

    def start(self, number: int) -> None:
        self._times[number] = time.monotonic()  # the same clock in all processes of a machine

    def started(self, number: int) -> float:
        """When the job began, in seconds of the monotonic clock; 0 if it has not."""
        return float(self._times[number])
