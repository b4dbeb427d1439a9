"""The job that is running here."""

import contextvars
import json
import logging
import time
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from penstock.engine.answers import Lease
from penstock.engine.transport.blocking import blocking
from penstock.errors import PenstockError, StaleLease
from penstock.model.codec import decode_any, open_envelope, storable
from penstock.model.payload_codec import Codecs

_current: contextvars.ContextVar["JobContext"] = contextvars.ContextVar("penstock_job")

JOB_LOGGER: Final = "penstock.job"  #: of lines that jobs log themselves, which are stored with them anyway
_MAX_MESSAGE: Final = 500  #: characters of a progress message
PROGRESS_INTERVAL: Final = 0.25  #: seconds between two reports of a job's progress

log = logging.getLogger(JOB_LOGGER)


class Reporter(Protocol):
    """Takes a job's progress: the engine; for a job in a process of its own, the worker."""

    codecs: Codecs

    def progress(self, worker: str, job_id: str, number: int, progress: str, /) -> Any: ...


class Sink(Protocol):
    """Stores the lines that jobs write, and reminds them of progress not sent yet: the worker."""

    def line(self, context: "JobContext", level: str, text: str, /) -> None: ...

    def remind(self, context: "JobContext", delay: float, /) -> None: ...


class JobContext(msgspec.Struct, eq=False):
    """The running job, as its task sees it."""

    _lease: Lease
    _worker: str
    _number: int
    _engine: Reporter
    state: Any  #: what the app's lifespan yielded
    _sink: Sink | None = None
    _sent_at: float = 0.0  #: when progress was last sent
    unsent: str = ""  #: progress to send
    pending: Any = None  #: the sink's record of lines that are not sent yet
    cancelling: bool = False  #: cancelling it was requested
    shutting_down: bool = False  #: the worker is about to stop

    def __repr__(self) -> str:
        return f"<JobContext {self.id} of {self.task}, attempt {self.attempt}>"

    @property
    def claim(self) -> tuple[str, str, int]:
        """The name of this attempt: worker, job, call number."""
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
        """The id of its batch; empty if it is in none."""
        return self._lease.ready.batch

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return self._lease.attempt

    @property
    def fence(self) -> int:
        """Grows with every start of any job of the app; a resource may refuse an older one."""
        return self._lease.running.fence

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags it was enqueued with; empty if its payload cannot be read."""
        try:
            return tuple(open_envelope(self._lease.payload).tags)
        except msgspec.MsgspecError:
            return ()

    @property
    def arguments(self) -> dict[str, Any]:
        """By name, as plain data, for code that takes jobs by hand. A task gets them converted."""
        arguments: dict[str, Any] = decode_any(bytes(open_envelope(self.payload).args))
        return arguments

    @property
    def payload(self) -> bytes:
        """Its arguments and the options that only workers need, as they were before they were sealed."""
        return self._engine.codecs.open_payload(self._lease.payload, self.task, self.id)

    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report how far the job is; StaleLease if this attempt no longer holds it.

        Sent at most four times a second: the first report at once, then the latest one.
        """
        if self._is_due(_progress_text(done, total, message)):
            self._check(await self._engine.progress(*self.claim, self._sealed(self._take_unsent())))

    progress_sync = blocking(progress)

    async def flush(self) -> None:
        """Send progress that is not sent yet; errors are ignored."""
        if self.unsent:
            with suppress(Exception):
                self._check(await self._engine.progress(*self.claim, self._sealed(self._take_unsent())))

    def _is_due(self, text: str) -> bool:
        """Whether to send it now; if not, the sink reminds the job later."""
        waited, reminded = time.monotonic() - self._sent_at, bool(self.unsent)
        self.unsent = text
        if waited < PROGRESS_INTERVAL and not reminded and self._sink is not None:
            self._sink.remind(self, PROGRESS_INTERVAL - waited)
        return waited >= PROGRESS_INTERVAL

    def _take_unsent(self) -> str:
        self._sent_at, text, self.unsent = time.monotonic(), self.unsent, ""
        return text

    def _sealed(self, text: str) -> str:
        return self._engine.codecs.seal_progress(text, self.task, self.id)

    async def report(self, text: str) -> str:
        """Send progress for a job in a process of its own; the answer is ok, cancelling or stale."""
        word: str = await self._engine.progress(self._worker, self.id, self._number, self._sealed(text))
        self.cancelling = self.cancelling or word == "cancelling"
        return word

    def log(self, text: str) -> None:
        """Log a line about this job: stored with it, and passed to `logging`."""
        fields: dict[str, Any] = {"job": self.id, "task": self.task, "attempt": self.attempt}
        if self._sink is not None:
            self._sink.line(self, "info", str(text))
        log.info("%s", text, extra=fields)

    @property
    def hides_errors(self) -> bool:
        """Whether its errors are stored sealed, and its log is not."""
        codecs = self._engine.codecs
        return codecs.has("error") and not codecs.has("log")

    def keep(self, level: str, text: str) -> None:
        """Store a line that was logged while it ran."""
        if self._sink is not None:
            self._sink.line(self, level, text)

    def _check(self, word: str) -> None:
        if word == "stale":
            raise StaleLease(f"job {self.id} is no longer held by this attempt; stop, its result would be refused")
        self.cancelling = self.cancelling or word == "cancelling"


def current_job() -> JobContext:
    """The job that is running here; raises an error outside of a job."""
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


def _progress_text(done: float, total: float | None, message: str) -> str:
    return json.dumps([done, total, storable(str(message), _MAX_MESSAGE)])
