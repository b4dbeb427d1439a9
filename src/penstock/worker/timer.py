"""The timer: what is due becomes ready, what is late expires, what the dead left is taken back, what is old is pruned.

Any number of timers may run anywhere; each step is a script that is safe to call at any time.
"""

import asyncio
import logging
import time
from typing import Final

from penstock.engine.engine import PAGE, Engine
from penstock.engine.reach import Reach
from penstock.errors import PenstockError

log = logging.getLogger("penstock.worker")

LONGEST: Final = 60.0  #: seconds between two looks at what is due
PRUNE: Final = 15.0


class Timer:
    """Keeps the due times of one namespace, to the millisecond, on this process' clock but by the server's time."""

    def __init__(self, engine: Engine, life: int, reach: Reach) -> None:
        self._engine = engine
        self._reach = reach
        self._life = life
        self._armed = asyncio.Event()

    def rearm(self) -> None:
        """Something is due earlier than was known."""
        self._armed.set()

    async def run(self) -> None:
        due = reaped = pruned = time.monotonic()
        while True:
            wait = 1.0
            try:
                if self._armed.is_set() or time.monotonic() >= due:
                    self._armed.clear()
                    due = time.monotonic() + await self._due()
                now = time.monotonic()
                if now - reaped >= self._life / 3000:
                    reaped = now
                    await self._reap()
                if now - pruned >= PRUNE:
                    pruned = now
                    await self._prune()
                self._reach.back("timer")
                wait = max(due - time.monotonic(), 0)
            except PenstockError as error:
                self._armed.set()  # a letter may have been lost meanwhile
                self._reach.lost("timer", error)
                await asyncio.sleep(wait)
            await self._sleep(min(wait, self._life / 3000, PRUNE))

    async def _due(self) -> float:
        """Move what is due; seconds until the next one is."""
        wait = LONGEST
        for verb in (self._engine.promote, self._engine.expire):
            due = await verb()
            while due.moved >= PAGE:
                due = await verb()
            if due.next >= 0:
                wait = min(wait, max(due.next - due.now, 0) / 1000)
        return wait

    async def _reap(self) -> None:
        moved, more = await self._engine.reap(self._life, cause='{"type": "WorkerLost", "message": "not heard of"}')
        if moved:
            log.warning("%d jobs of lost workers were taken back", moved)
        while more:
            _, more = await self._engine.reap(self._life)

    async def _prune(self) -> None:
        _, more = await self._engine.prune()
        while more:
            _, more = await self._engine.prune()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._armed.wait()
        except TimeoutError:
            pass
