"""Processes by their ids, as /proc shows them: who descends from whom, what they used, and stopping them."""

import contextlib
import os
import signal
import time
from pathlib import Path


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    pids = [root]
    for pid in pids:
        pids += parents.get(pid, [])
    return pids


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def cpu(pids: list[int]) -> float:
    """Seconds that they have computed, over all their threads."""
    return sum(_nanoseconds(pid) for pid in pids) / 1e9


def _nanoseconds(pid: int) -> int:
    # Not /proc/<pid>/stat, which counts in steps of 10 ms: too coarse for a worker that idles.
    spent = 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                spent += int((thread / "schedstat").read_text().split()[0])
    return spent


def memory(pids: list[int]) -> float:
    """MiB that they hold; what forked processes share counts once."""
    kilobytes = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kilobytes += int(line.split()[1])
    return kilobytes / 1024


def end(root: int, timeout: float = 3.0) -> None:
    """Ask it to end; after a while kill it and whatever is left of its descendants."""
    pids = tree(root)
    send([root], signal.SIGTERM)
    until = time.monotonic() + timeout
    while time.monotonic() < until and any(map(_is_alive, pids)):
        time.sleep(0.05)
    send([pid for pid in {*pids, *tree(root)} if _is_alive(pid)], signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
