"""Renewals, from a thread and a connection of their own, so that a task that blocks the loop costs no lease."""

import logging
import threading
from collections.abc import Callable

from penstock.engine.engine import Engine
from penstock.errors import PenstockError

log = logging.getLogger("penstock.worker")


class Renewer:
    """Keeps one worker alive until it is stopped."""

    def __init__(
        self, engine: Engine, life: int, *, lost: Callable[[str], None], cancelling: Callable[[str], None]
    ) -> None:
        self._engine = engine
        self._life = life
        self._lost = lost
        self._cancelling = cancelling
        self.worker = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-renew", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        well, wait = True, self._life / 3000
        while not self._stop.wait(wait):
            try:
                self._renew(self.worker)
                if not well:
                    log.warning("the worker's lease is renewed again")
                well, wait = True, self._life / 3000
            except PenstockError as error:
                if well:
                    log.warning("the worker's lease could not be renewed: %s", error)
                well, wait = False, min(1.0, self._life / 10_000)

    def _renew(self, worker: str) -> None:
        renewed = self._engine.renew(self._life, [worker]).sync()
        if renewed.words == ["unknown"]:
            self._lost(worker)
        for _, job_id in renewed.cancelling:
            self._cancelling(job_id)
