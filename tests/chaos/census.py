"""Which processes of a run live, seen from outside, when each was last alive, and whether we had any time to look."""

import contextlib
import threading
import time
from pathlib import Path

from tests.chaos.ledger import Ledger, now

PAUSE = 0.1  #: seconds between two looks
STARVED = 0.25  #: seconds that a look may be late: whoever renews a short lease may have been as late


class Census:
    """Looks at all processes again and again. Ours have the mark in their environment, whoever their parent is."""

    def __init__(self, mark: str, ledger: Ledger) -> None:
        self._mark = mark.encode()
        self._ledger = ledger
        self._known: dict[tuple[int, str], bool] = {}  #: (pid, when it was started) → whether it is ours
        self.last_alive: dict[int, int] = {}  #: pid → µs
        self.parents: dict[int, int] = {}
        self.alive: set[int] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="census", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def look(self) -> None:
        found, at = set(), now()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and self._is_ours(folder):
                found.add(int(folder.name))
                self.last_alive[int(folder.name)] = at
        self.alive = found

    def children(self, pid: int) -> list[int]:
        return sorted(one for one in self.alive if self.parents.get(one) == pid)

    def tree(self, pid: int) -> list[int]:
        """Its descendants."""
        found, wave = list[int](), [pid]
        while wave:
            wave = [child for one in wave for child in self.children(one)]
            found += wave
        return found

    def _run(self) -> None:
        last = time.monotonic()
        while not self._end.wait(PAUSE):
            self.look()
            late = time.monotonic() - last - PAUSE
            if late > STARVED:
                self._ledger.note("starved", since=int(last * 1e6), until=now())
            last = time.monotonic()

    def _is_ours(self, folder: Path) -> bool:
        with contextlib.suppress(OSError, IndexError):
            state, parent, *fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if state in "ZX":
                return False
            key = int(folder.name), fields[17]
            if key not in self._known or not self._known[key]:  # a fork has not become what it will be yet
                self._known[key] = self._mark in (folder / "environ").read_bytes()
            self.parents[key[0]] = int(parent)
            return self._known[key]
        return False


def memory(pid: int) -> int:
    """KiB that are resident."""
    with contextlib.suppress(OSError, StopIteration):
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in status if line.startswith("VmRSS")).split()[1])
    return 0


def files(pid: int) -> int:
    """Descriptors that are open."""
    with contextlib.suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0
