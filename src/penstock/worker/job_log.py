"""The lines that jobs write, kept with them: collected for a moment, then sent for all jobs of the worker together."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from penstock.api.context import JOB_LOGGER, PROGRESS_INTERVAL, JobContext, context_or_none
from penstock.engine.engine import Engine
from penstock.model.codec import storable

log = logging.getLogger("penstock.worker")

_JOBS: Final = 20  #: in one call
_LINES: Final = 200  #: of one job that wait to be sent; of more, the last
_LONGEST: Final = 2_000  #: characters of one line
_LEVEL: Final = 50  #: and of its level's name


class Pending:
    """What one attempt wrote that was not sent yet."""

    __slots__ = ("lines", "sent")

    def __init__(self) -> None:
        self.lines: deque[list[Any]] = deque(maxlen=_LINES)
        self.sent = 0


class JobLog:
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
        row = [round(time.time() * 1000), context.attempt, storable(level, _LEVEL), storable(text, _LONGEST)]
        with self._lock:
            if context.pending is None:
                context.pending = Pending()
            context.pending.lines.append(row)
            self._dirty[context] = None
            scheduled, self._scheduled = self._scheduled, True
        if not scheduled:
            self._soon(lambda: self._loop.call_later(PROGRESS_INTERVAL, self._start))

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
        except Exception as error:  # noqa: BLE001  (what jobs write must not keep their worker from anything)
            log.warning("lines of %d jobs could not be kept: %s", len(rows), error)


class Capture:
    """Makes log records, and has what is logged while a job runs kept with it.

    It is no handler: with one at the root, `logging.basicConfig()` would do nothing, and of a program that sets up no
    logging nobody would see the warnings.
    """

    def __init__(self, level: str) -> None:
        self._level = logging.getLevelNamesMapping()[level]
        self._format = logging.Formatter().format
        self.make: Callable[..., logging.LogRecord] = logging.getLogRecordFactory()
        self.is_on = True

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self.make(*args, **kwargs)
        context = context_or_none() if self.is_on else None
        if context is not None and record.name != JOB_LOGGER and (record.levelno or 0) >= self._level:
            context.keep(str(record.levelname).lower(), self._text(record))
        return record

    def _text(self, record: logging.LogRecord) -> str:
        for text in (self._format, lambda record: str(record.msg)):
            with suppress(Exception):  # a record that cannot be formatted is its writer's mistake, not the job's
                return text(record)
        return f"(a line that cannot be shown, logged at {record.pathname}:{record.lineno})"


@contextmanager
def captured(level: str) -> Iterator[None]:
    """While a worker runs; `OFF` keeps only what jobs log themselves."""
    if level == "OFF" or isinstance(logging.getLogRecordFactory(), Capture):  # that of another worker in this process
        yield
        return
    capture = Capture(level)
    logging.setLogRecordFactory(capture)
    try:
        yield
    finally:
        capture.is_on = False
        if logging.getLogRecordFactory() is capture:  # else somebody else goes on to use it
            logging.setLogRecordFactory(capture.make)
