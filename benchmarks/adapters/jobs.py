"""What jobs do in every system, and what they are called with."""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.marks import Marks

URL = os.environ["BENCH_URL"]
marks = Marks(Path(os.environ["BENCH_MARKS"]))
start = marks.start
_LONG = 3_600  #: seconds, in which a worker that runs it is killed


@dataclass(frozen=True, slots=True)
class Job:
    """One call: `kind` is the task, `size` the length of its payload."""

    kind: str
    number: int
    size: int = 0

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (self.number, "x" * self.size) if self.kind == "payload" else (self.number,)


def _is_first(number: int) -> bool:
    """Whether this is the job's first run, which lasts until its worker is killed; a second one leaves its mark."""
    first = not marks.started(number)
    start(number if first else number + 1)
    return first


def crash_in_thread(number: int) -> None:
    if _is_first(number):
        time.sleep(_LONG)


async def crash_on_loop(number: int) -> None:
    if _is_first(number):
        await asyncio.sleep(_LONG)
