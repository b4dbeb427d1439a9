"""Processes that nothing has killed: they must not gather memory or open files."""

from tests.chaos.census import files, memory
from tests.chaos.checks import Violation
from tests.chaos.crew import Crew

FILES = 40  #: descriptors more than at first
MEMORY = 80 * 1024  #: KiB more than at first
SETTLED = 10  #: looks after which a process has what it needs


class Survivors:
    """Looks at all processes of a run now and then, and at the end at those that are still there."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._seen: dict[int, int] = {}
        self._first: dict[int, tuple[int, int]] = {}

    def _pids(self) -> set[int]:
        return self._crew.census.alive | {self._crew.server.process.pid}

    def look(self) -> None:
        for pid in self._pids():
            self._seen[pid] = self._seen.get(pid, 0) + 1
            if self._seen[pid] == SETTLED:
                self._first[pid] = files(pid), memory(pid)

    def check(self) -> list[Violation]:
        found = []
        for pid in self._pids() & self._first.keys():
            before, after = self._first[pid], (files(pid), memory(pid))
            if after[0] > before[0] + FILES:
                found.append(Violation("files", str(pid), f"process {pid} had {before[0]} files open, now {after[0]}"))
            if after[1] > before[1] + MEMORY:
                found.append(Violation("memory", str(pid), f"process {pid} had {before[1]} KiB, now {after[1]}"))
        return found
