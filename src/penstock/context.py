"""The job that is running here."""

import asyncio
import contextvars
import json
import logging
from dataclasses import dataclass, field
from typing import Any

from penstock.engine.engine import Engine
from penstock.errors import PenstockError, StaleLease

_current: contextvars.ContextVar["JobContext"] = contextvars.ContextVar("penstock_job")
log = logging.getLogger("penstock.job")


@dataclass(slots=True, eq=False)
class JobContext:
    """What a running task can know of its job, and say about it."""

    id: str
    task: str
    queue: str
    attempt: int  #: 1 for the first run
    fence: int  #: grows with every start of any job of the app; a resource may refuse an older one
    tags: tuple[str, ...]
    state: Any  #: what the app's lifespan gave
    cancelling: bool = False  #: somebody asked for it to be cancelled
    shutting_down: bool = False  #: the worker is about to stop
    _engine: Engine | None = field(default=None, repr=False)
    _worker: str = field(default="", repr=False)
    _call: int = field(default=0, repr=False)
    logs: list[str] = field(default_factory=list, repr=False)

    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far it has come; StaleLease if the job is no longer this attempt's."""
        if self._engine is not None:
            self._judge(await self._engine.progress(self._worker, self.id, self._call, _shown(done, total, message)))

    def progress_sync(self, done: float, total: float | None = None, message: str = "") -> None:
        """The same from a `def` task."""
        if self._engine is not None:
            text = _shown(done, total, message)
            self._judge(self._engine.progress(self._worker, self.id, self._call, text).sync())

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
