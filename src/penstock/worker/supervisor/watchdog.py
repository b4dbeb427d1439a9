"""Watching children from outside: a blocked one is killed, a stalled one is reported, one that grew is replaced.

A child cannot do any of this itself, because its loop may be blocked.
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
from penstock.worker.run import OVERRUN_TIMEOUT
from penstock.worker.supervisor.child import Child, memory_of
from penstock.worker.supervisor.shared_state import SharedState

log = logging.getLogger("penstock.worker")

CHECK_INTERVAL: Final = 2.0  #: seconds between two checks of the children
STALLED_AFTER: Final = 60.0  #: seconds without a beat after which a child's loop is shown as stalled


@dataclass(frozen=True, slots=True)
class Limits:
    """When a child is replaced by a fresh one; None: never."""

    age: float | None = None  #: seconds
    memory: int | None = None  #: bytes


class Watchdog:
    """Checks the children of one supervisor in turn; `children` is the supervisor's own list, which changes."""

    def __init__(
        self, engine: Engine, children: Sequence[Child], limits: Limits, lease: int, health: ConnectionHealth
    ) -> None:
        self._engine = engine
        self._children = children
        self._limits = limits
        self._lease = lease
        self._health = health

    async def run(self) -> None:
        while True:
            for child in list(self._children):
                await self._check(child)
            await asyncio.sleep(CHECK_INTERVAL)

    async def _check(self, child: Child) -> None:
        if not child.is_up or child.shared_state is None:
            return
        now = time.monotonic()
        silence = now - child.shared_state.last_beat
        _kill_if_blocked(child, child.shared_state, now, silence)
        await self._report_stalled(child, silence)
        _replace_if_over(child, self._limits, now)

    async def _report_stalled(self, child: Child, silence: float) -> None:
        stalled = silence > STALLED_AFTER
        if stalled == child.is_stalled or child.registered is None:
            return
        info, queues = child.registered
        if stalled:
            info = info | {"stalled": round((time.time() - silence) * 1000)}
            log.warning("child %d: its loop has said nothing for %.0f s; see `penstock workers`", child.pid, silence)
        try:
            await self._engine.register(child.worker, self._lease, json.dumps(info), queues)
            child.is_stalled = stalled
        except PenstockError as error:
            self._health.failed("watch", error)
        else:
            self._health.succeeded("watch")


def _kill_if_blocked(child: Child, shared_state: SharedState, now: float, silence: float) -> None:
    """Kill a child whose loop is blocked beyond the time of one of its jobs: only that job is charged."""
    if silence < OVERRUN_TIMEOUT or child.killed_for is not None:
        return
    here = [job for job in shared_state.started() if not job.is_apart]
    late = [job.id for job in here if job.until and job.until + OVERRUN_TIMEOUT < now]
    if late:
        log.error("child %d is blocked, and the time of %s is over: it is killed", child.pid, ", ".join(late))
        child.killed_for = late
        child.kill()


def _replace_if_over(child: Child, limits: Limits, now: float) -> None:
    if child.is_leaving:
        return
    if limits.age and now - child.started_at > limits.age:
        child.send("leave", "it is old enough")
    elif limits.memory and memory_of(child.pid) > limits.memory:
        child.send("leave", f"it has more than {limits.memory // 2**20} MiB of memory")
