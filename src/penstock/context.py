"""The job that is running here."""

import asyncio
import contextvars
import json
import logging
from typing import Any, Protocol

from penstock.engine.answers import Lease
from penstock.errors import PenstockError, StaleLease

_current: contextvars.ContextVar["JobContext"] = contextvars.ContextVar("penstock_job")
log = logging.getLogger("penstock.job")


class Reporter(Protocol):
    """Whoever passes a job's progress on: the engine, or in a process of its own the worker."""

    def progress(self, worker: str, job_id: str, number: int, progress: str, /) -> Any: ...


class JobContext:
    """What a running task can know of its job, and say about it."""

    __slots__ = ("_engine", "_lease", "_number", "_worker", "cancelling", "shutting_down", "state", "tags")

    def __init__(self, lease: Lease, worker: str, number: int, engine: Reporter, state: Any) -> None:
        self._lease = lease
        self._worker = worker
        self._number = number
        self._engine = engine
        self.tags: tuple[str, ...] = ()
        self.state = state  #: what the app's lifespan gave
        self.cancelling = False  #: somebody asked for it to be cancelled
        self.shutting_down = False  #: the worker is about to stop

    def __repr__(self) -> str:
        return f"<JobContext {self.id} of {self.task}, attempt {self.attempt}>"

    @property
    def lease(self) -> Lease:
        return self._lease

    @property
    def id(self) -> str:
        return self._lease.id

    @property
    def task(self) -> str:
        return self._lease.found.ready.task

    @property
    def queue(self) -> str:
        return self._lease.found.ready.queue

    @property
    def batch(self) -> str:
        """The id of the batch that it is a member of, or nothing."""
        return self._lease.found.ready.batch

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return self._lease.attempt

    @property
    def fence(self) -> int:
        """Grows with every start of any job of the app; a resource may refuse an older one."""
        return self._lease.found.fence

    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far it has come; StaleLease if the job is no longer this attempt's."""
        self._judge(await self._engine.progress(self._worker, self.id, self._number, _shown(done, total, message)))

    def progress_sync(self, done: float, total: float | None = None, message: str = "") -> None:
        """The same from a `def` task."""
        text = _shown(done, total, message)
        self._judge(self._engine.progress(self._worker, self.id, self._number, text).sync())

    async def report(self, text: str) -> str:
        """Pass on the progress that a process of this job made: ok, cancelling or stale."""
        word: str = await self._engine.progress(self._worker, self.id, self._number, text)
        self.cancelling = self.cancelling or word == "cancelling"
        return word

    def log(self, text: str) -> None:
        """A line about this job, through `logging`."""
        log.info("%s", text, extra={"job": self.id, "task": self.task, "attempt": self.attempt})

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


def enter(context: JobContext) -> "contextvars.Token[JobContext]":
    return _current.set(context)


def _shown(done: float, total: float | None, message: str) -> str:
    return json.dumps([done, total, message[:500]])


def running_on_loop() -> bool:
    """Whether this thread is running an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
