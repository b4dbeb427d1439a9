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

    def __init__(self, engine: Engine, life: int, reach: Reach, reap: float | None = None) -> None:
        """Seconds between two looks for the dead, unless somebody says that there are some."""
        self._engine = engine
        self._reach = reach
        self._life = life
        self._reaps = life / 3000 if reap is None else reap
        self._reap_due = 0.0
        self._armed = asyncio.Event()
        self._news = asyncio.Event()

    def rearm(self) -> None:
        """Something is due earlier than was known."""
        self._armed.set()
        self._news.set()

    def reap_soon(self) -> None:
        """Somebody is past its life."""
        self._reap_due = 0.0
        self._news.set()

    async def run(self) -> None:
        due = pruned = time.monotonic()
        self._reap_due = due + self._reaps
        while True:
            wait = 1.0
            try:
                if self._armed.is_set() or time.monotonic() >= due:
                    self._armed.clear()
                    due = time.monotonic() + await self._due()
                now = time.monotonic()
                if now >= self._reap_due:
                    self._reap_due = now + self._reaps
                    await self._reap()
                if now - pruned >= PRUNE:
                    pruned = now
                    await self._prune()
                self._reach.back("timer")
                wait = max(due - time.monotonic(), 0)
            except PenstockError as error:
                self._armed.set()  # a letter may have been lost meanwhile
                self._reach.lost("timer", error)
                await self._reach.pause("timer", wait)
            await self._sleep(min(wait, max(self._reap_due - time.monotonic(), 0), PRUNE))

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
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()
