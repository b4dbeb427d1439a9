"""Watching children from outside: ending a job that blocks its child, telling of a stalled loop, replacing what grew.

A child cannot do any of this by itself, because all of it is about a loop that may not come round.
"""

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.engine.engine import Engine
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.errors import PenstockError
from penstock.worker.run import OVERRUN
from penstock.worker.supervisor.child import Child, memory_of
from penstock.worker.supervisor.shared_state import SharedState

log = logging.getLogger("penstock.worker")

PAUSE: Final = 2.0  #: seconds between two looks at the children
STALLED: Final = 60.0  #: seconds of silence after which a child's loop is shown as stalled


@dataclass(frozen=True, slots=True)
class Limits:
    """When a child is replaced by a fresh one; None: never."""

    age: float | None = None  #: seconds
    memory: int | None = None  #: bytes


class Watchdog:
    """Looks at the children of one supervisor again and again; `children` is its own list, which changes."""

    def __init__(
        self, engine: Engine, children: Sequence[Child], limits: Limits, life: int, health: ConnectionHealth
    ) -> None:
        self._engine = engine
        self._children = children
        self._limits = limits
        self._life = life
        self._health = health

    async def run(self) -> None:
        while True:
            for child in list(self._children):
                await self._look_at(child)
            await asyncio.sleep(PAUSE)

    async def _look_at(self, child: Child) -> None:
        if not child.up or child.notes is None:
            return
        now = time.monotonic()
        quiet = now - child.notes.last_beat
        _end_overruns(child, child.notes, now, quiet)
        await self._tell_stalled(child, quiet)
        _recycle(child, self._limits, now)

    async def _tell_stalled(self, child: Child, quiet: float) -> None:
        stalled = quiet > STALLED
        if stalled == child.stalled or child.node is None:
            return
        info, queues = child.node
        if stalled:
            info = info | {"stalled": round((time.time() - quiet) * 1000)}
            log.warning("child %d: its loop has said nothing for %.0f s; see `penstock workers`", child.pid, quiet)
        try:
            await self._engine.register(child.worker, self._life, json.dumps(info), queues)
            child.stalled = stalled
        except PenstockError as error:
            self._health.failed("watch", error)
        else:
            self._health.succeeded("watch")


def _end_overruns(child: Child, notes: SharedState, now: float, quiet: float) -> None:
    """Kill a child whose loop is blocked beyond the time of one of its jobs: only that job is charged."""
    if quiet < OVERRUN or child.condemned is not None:
        return
    here = [job for job in notes.started() if not job.is_apart]
    late = [job.id for job in here if job.until and job.until + OVERRUN < now]
    if late:
        log.error("child %d is blocked, and the time of %s is over: it is killed", child.pid, ", ".join(late))
        child.condemned = late
        child.kill()


def _recycle(child: Child, limits: Limits, now: float) -> None:
    if child.leaving:
        return
    if limits.age and now - child.born > limits.age:
        child.say("leave", "it is old enough")
    elif limits.memory and memory_of(child.pid) > limits.memory:
        child.say("leave", f"it has more than {limits.memory // 2**20} MiB of memory")
