"""What the main thread of a server did during a long script: ran, waited for a CPU, or had its CPU taken away.

The slow log has wall-clock time. On a shared machine most of a long script's time may be time in which the thread did
not run: other processes of this machine had the CPU (`waited`), or other guests of its host (`stolen`).
"""

import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock.engine.engine import Engine
from penstock.engine.transport.script_client import ScriptCall
from tests.servers import Server

STEP_US = 1_000_000 // os.sysconf("SC_CLK_TCK")  #: the unit in which stolen time is counted


class Lap(NamedTuple):
    """Microseconds from before a call until its answer, and what the server's main thread did in them."""

    passed: int
    ran: int
    waited: int
    stolen: int

    @property
    def own(self) -> int:
        """The most CPU time that the thread can have used; it includes all scripts of that time.

        The kernel does not count stolen time as run time. But if another CPU reads the run time while this CPU is taken
        away, that part is counted as run and again as stolen.
        """
        return min(self.ran, self.passed - self.stolen)

    def __str__(self) -> str:
        passed, ran, waited, stolen = (f"{us / 1000:.1f}" for us in self)
        return f"ran {ran}, waited {waited}, stolen {stolen}, of {passed} ms"


class _Reading(NamedTuple):
    at: int
    ran: int
    waited: int
    cpu: int
    stolen: tuple[int, ...]  # of each CPU

    def until(self, end: "_Reading") -> Lap:
        stolen = end.stolen[end.cpu] - self.stolen[end.cpu]
        return Lap(end.at - self.at, end.ran - self.ran, end.waited - self.waited, stolen)


def _read(pid: int) -> _Reading:
    thread = Path(f"/proc/{pid}/task/{pid}")
    ran, waited, _ = map(int, (thread / "schedstat").read_text().split())
    cpu = int((thread / "stat").read_text().rpartition(")")[2].split()[36])
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()[1:] if line.startswith("cpu")]
    stolen = tuple(int(line[8]) * STEP_US for line in lines)
    return _Reading(time.monotonic_ns() // 1000, ran // 1000, waited // 1000, cpu, stolen)


class Stopwatch:
    """Measures a lap for every call of an engine, and keeps those of scripts that are in the slow log."""

    def __init__(self, engine: Engine, server: Server, slow_us: int) -> None:
        self._engine = engine
        self._server = server
        self._slow_us = slow_us
        self.reset()
        # Where the system has no such figures, nothing is kept: there is only wall-clock time.
        if Path(f"/proc/{server.process.pid}/schedstat").exists():
            self._together = engine.script_client.together
            engine.script_client.together = self._timed  # type: ignore[method-assign]

    def reset(self) -> None:
        """Start again, as after a restart of the server."""
        self.laps: dict[int, Lap] = {}  #: by number of the entry in the slow log
        self.longest = 0  #: microseconds of a CPU in any lap
        self._last_entry = -1  #: the last entry of the slow log that was read

    async def _timed(self, *calls: ScriptCall[Any], **options: Any) -> list[Any]:
        async with self.lap():
            return await self._together(*calls, **options)

    @contextlib.asynccontextmanager
    async def lap(self) -> AsyncIterator[None]:
        """Measure one call. Calls may overlap: of the laps that have an entry, the longest has all of its script."""
        last_entry, second, start = self._last_entry, int(time.time()), _read(self._server.process.pid)
        yield
        lap = start.until(_read(self._server.process.pid))
        self.longest = max(self.longest, lap.own)
        if lap.passed > self._slow_us:
            client: Any = await self._engine.script_client.endpoint.client()
            for entry in await client.slowlog_get(1000):
                number = entry["id"]
                if number > last_entry and entry["start_time"] >= second:
                    self.laps[number] = max(self.laps.get(number, lap), lap, key=lambda lap: lap.own)
                    self._last_entry = max(self._last_entry, number)
