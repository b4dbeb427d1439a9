"""The lines that jobs write, kept with them: collected for a moment, then sent for all jobs of the worker together."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from penstock.context import PACE, JobContext, context_or_none
from penstock.engine.engine import Engine
from penstock.errors import PenstockError

log = logging.getLogger("penstock.worker")

_JOBS: Final = 20  #: in one call
_LINES: Final = 200  #: of one job that wait to be sent; of more, the last
_LONGEST: Final = 2_000  #: characters of one line


class Pending:
    """What one attempt wrote that was not sent yet."""

    __slots__ = ("lines", "sent")

    def __init__(self) -> None:
        self.lines: deque[list[Any]] = deque(maxlen=_LINES)
        self.sent = 0


class Lines:
    """Keeps what the jobs of one worker write; any thread may write."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._dirty: dict[JobContext, None] = {}  #: in the order in which they wrote
        self._tasks: set[asyncio.Task[None]] = set()
        self._scheduled = False

    def line(self, context: JobContext, level: str, text: str) -> None:
        """One more line of a job."""
        row = [round(time.time() * 1000), context.attempt, level, text[:_LONGEST]]
        with self._lock:
            if context.pending is None:
                context.pending = Pending()
            context.pending.lines.append(row)
            self._dirty[context] = None
            scheduled, self._scheduled = self._scheduled, True
        if not scheduled:
            self._soon(lambda: self._loop.call_later(PACE, self._start))

    def remind(self, context: JobContext, delay: float) -> None:
        """Have it say its progress after a while."""
        self._soon(lambda: self._loop.call_later(delay, lambda: self._spawn(context.flush())))

    async def aclose(self) -> None:
        """Send what is left."""
        await self._send()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _soon(self, act: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:  # the loop has been closed meanwhile
            log.debug("a line came too late to be kept")

    def _start(self) -> None:
        self._spawn(self._send())

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self) -> None:
        with self._lock:
            dirty, self._dirty, self._scheduled = list(self._dirty), {}, False
        for start in range(0, len(dirty), _JOBS):
            by_worker: dict[str, list[Any]] = {}
            for context in dirty[start : start + _JOBS]:
                by_worker.setdefault(context.claim[0], []).append(self._row(context))
            for worker, rows in by_worker.items():
                await self._send_page(worker, rows)

    def _row(self, context: JobContext) -> tuple[str, int, int, list[Any]]:
        _, job_id, number = context.claim
        with self._lock:
            pending = context.pending
            lines = list(pending.lines)
            before, pending.sent = pending.sent, pending.sent + len(lines)
            pending.lines.clear()
        return job_id, number, before, lines

    async def _send_page(self, worker: str, rows: list[Any]) -> None:
        try:
            await self._engine.log(worker, rows)
        except PenstockError as error:
            log.warning("lines of %d jobs could not be kept: %s", len(rows), error)


class Capture(logging.Handler):
    """Has what is logged while a job runs kept with it."""

    def emit(self, record: logging.LogRecord) -> None:
        context = context_or_none()
        if context is not None and not hasattr(record, "kept"):
            try:
                text = self.format(record)
            except Exception:  # noqa: BLE001  (a record that cannot be formatted is its writer's mistake, not the job's)
                text = str(record.msg)
            context.keep(record.levelname.lower(), text)


@contextmanager
def captured(level: str) -> Iterator[None]:
    """While a worker runs; `OFF` keeps only what jobs log themselves."""
    if level == "OFF":
        yield
        return
    handler = Capture(level)
    root = logging.getLogger()
    if any(isinstance(one, Capture) for one in root.handlers):  # of another worker in this process
        yield
        return
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
