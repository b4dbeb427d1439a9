"""Stopping by signal: the first stops gracefully, the second at once, the third is handled by the system."""

import asyncio
import logging
import signal
from types import TracebackType
from typing import Self

log = logging.getLogger("penstock.worker")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """While it is entered, the first signal sets `stopped` and the second sets `hurry`."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self.hurry = asyncio.Event()

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove_handlers()

    def _on_signal(self, number: signal.Signals) -> None:
        if not self.stopped.is_set():
            log.info("%s: no more jobs are taken, those that run may finish; again to stop at once", number.name)
            self.stopped.set()
            return
        log.warning("%s again: the jobs that run are cancelled and given back", number.name)
        self.hurry.set()
        self._remove_handlers()

    def _remove_handlers(self) -> None:
        for number in _SIGNALS:
            self._loop.remove_signal_handler(number)
