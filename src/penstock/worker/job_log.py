"""The log lines of jobs, stored with them: collected for a moment, then sent together for all jobs of the worker."""

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

_MAX_JOBS: Final = 20  #: in one call
_MAX_LINES: Final = 200  #: of one job that wait to be sent; of more, the last are kept
_MAX_TEXT: Final = 2_000  #: characters of one line
_MAX_LEVEL: Final = 50  #: characters of its level's name


class Pending:
    """The lines of one attempt that were not sent yet."""

    __slots__ = ("lines", "sent")

    def __init__(self) -> None:
        self.lines: deque[list[Any]] = deque(maxlen=_MAX_LINES)
        self.sent = 0  #: lines sent before


class JobLog:
    """Stores the lines of one worker's jobs; any thread may write them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._unsent: dict[JobContext, None] = {}  #: jobs with lines to send, in the order in which they wrote
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_scheduled = False

    def line(self, context: JobContext, level: str, text: str) -> None:
        """Add a line of a job."""
        text = self._engine.codecs.seal_text("log", storable(text, _MAX_TEXT), context.task, context.id)
        row = [round(time.time() * 1000), context.attempt, storable(level, _MAX_LEVEL), text]
        with self._lock:
            if context.pending is None:
                context.pending = Pending()
            context.pending.lines.append(row)
            self._unsent[context] = None
            is_scheduled, self._is_scheduled = self._is_scheduled, True
        if not is_scheduled:
            self._call_soon(lambda: self._loop.call_later(PROGRESS_INTERVAL, self._start_sending))

    def remind(self, context: JobContext, delay: float) -> None:
        """Send the job's progress after a while."""
        self._call_soon(lambda: self._loop.call_later(delay, lambda: self._spawn(context.flush())))

    async def aclose(self) -> None:
        """Send what is left."""
        await self._send()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _call_soon(self, call: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop has been closed meanwhile
            log.debug("a line came too late to be kept")

    def _start_sending(self) -> None:
        self._spawn(self._send())

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self) -> None:
        with self._lock:
            unsent, self._unsent, self._is_scheduled = list(self._unsent), {}, False
        for start in range(0, len(unsent), _MAX_JOBS):
            by_worker: dict[str, list[Any]] = {}
            for context in unsent[start : start + _MAX_JOBS]:
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
        except Exception as error:  # noqa: BLE001  (the lines of jobs must not stop their worker)
            log.warning("lines of %d jobs could not be kept: %s", len(rows), error)


class Capture:
    """A log record factory that stores what is logged while a job runs with the job.

    It is not a handler: with a handler at the root, `logging.basicConfig()` would do nothing, and the warnings of a
    program that sets up no logging would be lost.
    """

    def __init__(self, level: str) -> None:
        self._level = logging.getLevelNamesMapping()[level]
        self._format = logging.Formatter().format
        self.wrapped: Callable[..., logging.LogRecord] = logging.getLogRecordFactory()
        self.is_enabled = True

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self.wrapped(*args, **kwargs)
        context = context_or_none() if self.is_enabled else None
        if context is not None and record.name != JOB_LOGGER and (record.levelno or 0) >= self._level:
            if record.name == log.name and context.hides_errors:
                return record  # the worker's own line about the error, which is stored with the attempt, sealed
            context.keep(str(record.levelname).lower(), self._text(record))
        return record

    def _text(self, record: logging.LogRecord) -> str:
        for text in (self._format, lambda record: str(record.msg)):
            with suppress(Exception):  # an unformattable record must not fail the job
                return text(record)
        return f"(a line that cannot be shown, logged at {record.pathname}:{record.lineno})"


@contextmanager
def captured(level: str) -> Iterator[None]:
    """Capture log records inside this block; with `OFF` only what jobs log themselves is stored."""
    if level == "OFF" or isinstance(logging.getLogRecordFactory(), Capture):  # another worker's
        yield
        return
    capture = Capture(level)
    logging.setLogRecordFactory(capture)
    try:
        yield
    finally:
        capture.is_enabled = False
        if logging.getLogRecordFactory() is capture:  # else it was wrapped by other code, which still uses it
            logging.setLogRecordFactory(capture.wrapped)
