"""The job that is running here."""

import asyncio
import contextvars
import json
import logging
import time
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from penstock.engine.answers import Lease
from penstock.errors import PenstockError, StaleLease
from penstock.model.codec import decode_any, open_envelope, storable

_current: contextvars.ContextVar["JobContext"] = contextvars.ContextVar("penstock_job")

JOB_LOGGER: Final = "penstock.job"  #: what jobs say themselves, which is kept with them anyway
_MESSAGE: Final = 500  #: characters of a progress message
PACE: Final = 0.25  #: seconds between two times that a job's progress is passed on

log = logging.getLogger(JOB_LOGGER)


class Reporter(Protocol):
    """Whoever passes a job's progress on: the engine, or in a process of its own the worker."""

    def progress(self, worker: str, job_id: str, number: int, progress: str, /) -> Any: ...


class Sink(Protocol):
    """Who keeps the lines that jobs write, and reminds them of what they have not said yet: the worker."""

    def line(self, context: "JobContext", level: str, text: str, /) -> None: ...

    def remind(self, context: "JobContext", delay: float, /) -> None: ...


class JobContext(msgspec.Struct, eq=False):
    """What a running task can know of its job, and say about it."""

    _lease: Lease
    _worker: str
    _number: int
    _engine: Reporter
    state: Any  #: what the app's lifespan gave
    _sink: Sink | None = None
    _said: float = 0.0  #: when progress was last passed on
    unsaid: str = ""  #: progress that is to be
    pending: Any = None  #: lines that it wrote, for whoever keeps them
    tags: tuple[str, ...] = ()
    cancelling: bool = False  #: somebody asked for it to be cancelled
    shutting_down: bool = False  #: the worker is about to stop

    def __repr__(self) -> str:
        return f"<JobContext {self.id} of {self.task}, attempt {self.attempt}>"

    @property
    def claim(self) -> tuple[str, str, int]:
        """What names this attempt: worker, job, call number."""
        return self._worker, self.id, self._number

    @property
    def worker(self) -> str:
        """The name of the worker that runs it."""
        return self._worker

    @property
    def lease(self) -> Lease:
        return self._lease

    @property
    def id(self) -> str:
        return self._lease.id

    @property
    def task(self) -> str:
        return self._lease.ready.task

    @property
    def queue(self) -> str:
        return self._lease.ready.queue

    @property
    def batch(self) -> str:
        """The id of the batch that it is a member of, or nothing."""
        return self._lease.ready.batch

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return self._lease.attempt

    @property
    def fence(self) -> int:
        """Grows with every start of any job of the app; a resource may refuse an older one."""
        return self._lease.found.fence

    @property
    def arguments(self) -> dict[str, Any]:
        """By name, as plain data; for those who take jobs by hand. A task has its own, converted."""
        found: dict[str, Any] = decode_any(bytes(open_envelope(self._lease.payload).args))
        return found

    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far it has come; StaleLease if the job is no longer this attempt's.

        It is passed on at most four times a second: the first at once, of those after it the last.
        """
        if self._is_due(_shown(done, total, message)):
            self._judge(await self._engine.progress(*self.claim, self._taken()))

    def progress_sync(self, done: float, total: float | None = None, message: str = "") -> None:
        """The same from a `def` task."""
        if self._is_due(_shown(done, total, message)):
            self._judge(self._engine.progress(*self.claim, self._taken()).sync())

    async def flush(self) -> None:
        """Pass on what is still unsaid; nobody is told if that cannot be done."""
        if self.unsaid:
            with suppress(Exception):
                self._judge(await self._engine.progress(*self.claim, self._taken()))

    def _is_due(self, text: str) -> bool:
        """Whether it is to be said now; later, somebody will remind it."""
        waited, reminded = time.monotonic() - self._said, bool(self.unsaid)
        self.unsaid = text
        if waited < PACE and not reminded and self._sink is not None:
            self._sink.remind(self, PACE - waited)
        return waited >= PACE

    def _taken(self) -> str:
        self._said, text, self.unsaid = time.monotonic(), self.unsaid, ""
        return text

    async def report(self, text: str) -> str:
        """Pass on the progress that a process of this job made: ok, cancelling or stale."""
        word: str = await self._engine.progress(self._worker, self.id, self._number, text)
        self.cancelling = self.cancelling or word == "cancelling"
        return word

    def log(self, text: str) -> None:
        """A line about this job: kept with it, and passed on to `logging`."""
        told: dict[str, Any] = {"job": self.id, "task": self.task, "attempt": self.attempt}
        if self._sink is not None:
            self._sink.line(self, "info", str(text))
        log.info("%s", text, extra=told)

    def keep(self, level: str, text: str) -> None:
        """A line that was logged while it ran."""
        if self._sink is not None:
            self._sink.line(self, level, text)

    def _judge(self, word: str) -> None:
        if word == "stale":
            raise StaleLease(f"job {self.id} is no longer held by this attempt; stop, its result would be refused")
        self.cancelling = self.cancelling or word == "cancelling"


def current_job() -> JobContext:
    """The job that is running here; an error outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise PenstockError("current_job() was called outside of a running job") from None


def context_or_none() -> JobContext | None:
    """The job that is running here, if one is."""
    return _current.get(None)


def enter(context: JobContext) -> "contextvars.Token[JobContext]":
    return _current.set(context)


def leave(token: "contextvars.Token[JobContext]") -> None:
    _current.reset(token)


def _shown(done: float, total: float | None, message: str) -> str:
    return json.dumps([done, total, storable(str(message), _MESSAGE)])


def running_on_loop() -> bool:
    """Whether this thread is running an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
