"""Renewals, from a thread and a connection of their own, so that a task that blocks the loop costs no lease."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from penstock.engine.engine import Engine
from penstock.engine.transport.eviction_watch import EvictionWatch
from penstock.errors import PenstockError

log = logging.getLogger("penstock.worker")


class RenewalThread:
    """Keeps one worker alive until it is stopped."""

    def __init__(
        self, engine: Engine, life: int, *, lost: Callable[[str], None], cancelling: Callable[[str], None]
    ) -> None:
        self._engine = engine
        self._eviction = EvictionWatch(engine.script_client)
        self._life = life
        self._lost = lost
        self._cancelling = cancelling
        self.worker = ""
        self.valid_until = 0.0  #: of the monotonic clock: until then nobody else takes its jobs
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-renew", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    async def ended(self) -> None:
        """Until the thread has ended. It is not joined: whoever gives up waiting must not leave a thread that waits."""
        if self._thread.ident is not None:
            await self._ended.wait()

    def _run(self) -> None:
        try:
            self._renew_all()
        finally:
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                self._loop.call_soon_threadsafe(self._ended.set)

    def _renew_all(self) -> None:
        well, wait = True, self._life / 3000
        while not self._stop.wait(wait):
            try:
                self._renew(self.worker)
                if not well:
                    log.warning("the worker's lease is renewed again")
                well, wait = True, self._life / 3000
                self._eviction.check_sync()
            except Exception as error:
                if not isinstance(error, PenstockError):
                    log.exception("the worker's lease could not be renewed")
                elif well:
                    log.warning("the worker's lease could not be renewed: %s", error)
                well, wait = False, min(1.0, self._life / 10_000)

    def _renew(self, worker: str) -> None:
        asked = time.monotonic()
        renewed = self._engine.renew(self._life, [worker]).sync()
        if renewed.words == ["unknown"]:
            self._lost(worker)
        elif self.worker == worker:
            self.valid_until = asked + self._life / 1000
        for _, job_id in renewed.cancelling:
            self._cancelling(job_id)
