"""What the main thread of a server did while a script took long: it ran, waited for a CPU, or its CPU was taken away.

A script's time in the slow log is time on the wall. Where others want the same CPUs, most of a long one is time in
which the thread did not run: others on this machine had the CPU (`waited`), or others on its host (`stolen`).
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

STEP_US = 1_000_000 // os.sysconf("SC_CLK_TCK")  #: in which stolen time is counted


class Lap(NamedTuple):
    """Microseconds from before a call until its answer, and what the server's main thread did in them."""

    passed: int
    ran: int
    waited: int
    stolen: int

    @property
    def own(self) -> int:
        """What the thread took of a CPU, at most: all scripts of that while are in it.

        The kernel leaves what was stolen out of the time that a thread ran. But if another CPU asks it for that time
        while this one is taken away, it is counted as run, and once more as stolen.
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
    """Takes a lap of every call of an engine, and keeps those of the scripts that are in the slow log."""

    def __init__(self, engine: Engine, server: Server, slow_us: int) -> None:
        self._engine = engine
        self._server = server
        self._slow_us = slow_us
        self.reset()
        # Where the system does not tell what a thread did, nothing is kept: time on the wall is all there is.
        if Path(f"/proc/{server.process.pid}/schedstat").exists():
            self._together = engine.script_client.together
            engine.script_client.together = self._timed  # type: ignore[method-assign]

    def reset(self) -> None:
        """For a server that was started again."""
        self.laps: dict[int, Lap] = {}  #: by the number of the slow log's entry
        self.longest = 0  #: microseconds of a CPU in any lap
        self._seen = -1  #: the last entry of the slow log that was looked at

    async def _timed(self, *calls: ScriptCall[Any], **how: Any) -> list[Any]:
        async with self.lap():
            return await self._together(*calls, **how)

    @contextlib.asynccontextmanager
    async def lap(self) -> AsyncIterator[None]:
        """One call. Others may be under way, so an entry may be in several laps: the longest has all of its script."""
        seen, second, start = self._seen, int(time.time()), _read(self._server.process.pid)
        yield
        lap = start.until(_read(self._server.process.pid))
        self.longest = max(self.longest, lap.own)
        if lap.passed > self._slow_us:
            client: Any = await self._engine.script_client.endpoint.client()
            for entry in await client.slowlog_get(1000):
                number = entry["id"]
                if number > seen and entry["start_time"] >= second:
                    self.laps[number] = max(self.laps.get(number, lap), lap, key=lambda one: one.own)
                    self._seen = max(self._seen, number)
