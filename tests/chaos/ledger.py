"""What really happened, outside the queue: a line of JSON for each fact, written whole, so that it survives kill -9."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def now() -> int:
    """µs of the clock that all processes of this machine share, whatever happens to the time of day."""
    return time.monotonic_ns() // 1000


class Ledger:
    """A file that any number of processes add lines to: one write each, with O_APPEND."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)

    def note(self, what: str, **facts: Any) -> None:
        """`at` is when; a fact of that name says another time."""
        line = {"what": what, "at": now(), "real": time.time_ns() // 1000, **facts}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All lines in the order in which they were written; the last may have been cut off with the machine."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)
