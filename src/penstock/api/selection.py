"""Jobs by filter: listed, counted, cancelled, retried, moved or discarded together, page by page."""

from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from penstock.api.job import JobStatus, status_of
from penstock.client.client import Client
from penstock.engine.engine import PAGE
from penstock.engine.read.listing import Filter, Listed, Listing
from penstock.engine.read.views import JobRecord
from penstock.engine.transport.script_client import ScriptCall
from penstock.errors import BadOption
from penstock.model.durations import Duration, milliseconds
from penstock.model.header import STATES, State
from penstock.model.options import queue_name, unknown

ProgressCallback = Callable[[int], None]  #: called with the number of jobs processed so far
# Held before ready: a held job that becomes ready meanwhile is then found among the ready ones.
_ACTIVE: Final[tuple[State, ...]] = ("scheduled", "held", "ready", "running")
_WAITING: Final[tuple[State, ...]] = ("scheduled", "held", "ready")
_MAX_PASSES: Final = 3
_CALL_JOBS: Final = 50  #: jobs in one call, so that other clients' calls need not wait long
_DEFAULT_LIMIT: Final = 100  #: jobs in the list that awaiting a selection gives


class Choice(NamedTuple):
    """Which jobs, as users choose them; ages are ms in the present state."""

    queue: str | None = None
    task: str | None = None
    state: str | None = None
    tag: str | None = None
    error: str | None = None
    group: str | None = None
    older_than: int | None = None
    newer_than: int | None = None
    batch: str | None = None

    def filter(self, now: int, state: str | None) -> Filter:
        """The filter at this time of the server's clock."""
        since = 0 if self.newer_than is None else now - self.newer_than
        until = 0 if self.older_than is None else now - self.older_than
        return Filter(self.queue, self.task, state, self.tag, self.error, self.group, since, until, self.batch)


def choose(
    *,
    queue: str | None = None,
    task: str | None = None,
    state: str | None = None,
    tag: str | None = None,
    error: str | None = None,
    group: str | None = None,
    older_than: Duration | None = None,
    newer_than: Duration | None = None,
    batch: str | None = None,
) -> Choice:
    """A choice with every value checked."""
    if state is not None and state not in STATES:
        raise BadOption(unknown("state", str(state), STATES))
    older = None if older_than is None else milliseconds(older_than, "older_than")
    newer = None if newer_than is None else milliseconds(newer_than, "newer_than")
    return Choice(None if queue is None else queue_name(queue), task, state, tag, error, group, older, newer, batch)


class Selection:
    """Jobs by filter: `async for` gives all, `await` a list of the first ones; its methods act on all of them."""

    def __init__(self, client: Callable[[], Client], choice: Choice, *, limit: int | None = None) -> None:
        self._client = client
        self._choice = choice
        self._limit = limit

    def __await__(self) -> Generator[Any, None, list[JobStatus]]:
        return self.first(self._limit or _DEFAULT_LIMIT).__await__()

    def __aiter__(self) -> AsyncIterator[JobStatus]:
        return self._each()

    async def first(self, number: int = _DEFAULT_LIMIT) -> list[JobStatus]:
        """The first jobs, at most `number`."""
        jobs: list[JobStatus] = []
        async for job in self._each():
            jobs.append(job)
            if len(jobs) >= number:
                break
        return jobs

    async def page(self, cursor: str = "", most: int | None = None) -> tuple[list[JobStatus], str]:
        """The matches among a bounded number of jobs, and the cursor of the next page; empty at the end."""
        wanted = self._choice.filter(await self._client().views.now(), self._choice.state)
        page = await self._listing().page(wanted, cursor, newest=self._is_newest_first(), contents=True, most=most)
        return [_status(job) for job in page.jobs], page.cursor

    async def count(self, on_progress: ProgressCallback | None = None) -> int:
        """How many jobs match."""
        number = 0
        async for _ in self._headers((self._choice.state,), newest=False):
            number += 1
            if on_progress is not None and number % PAGE == 0:
                on_progress(number)
        return number

    async def retry(self, on_progress: ProgressCallback | None = None) -> int:
        """Run the dead ones (or, with `state="cancelled"`, the cancelled ones) again; returns how many."""
        state = self._choice.state or "dead"
        if state not in {"dead", "cancelled"}:
            raise BadOption(f"state={state!r}: only dead and cancelled jobs can be run again")
        return await self._apply((state,), self._client().engine.revive, {"ok"}, on_progress, settled=True)

    async def discard(self, on_progress: ProgressCallback | None = None) -> int:
        """Forget the finished ones, except for their ids; returns how many."""
        states = ("done", "dead", "cancelled") if self._choice.state is None else (self._choice.state,)
        return await self._apply(states, self._client().engine.discard, {"ok"}, on_progress, settled=True)

    async def cancel(self, reason: str = "cancelled", on_progress: ProgressCallback | None = None) -> int:
        """Cancel waiting ones and ask running ones to stop; returns how many."""
        states = _ACTIVE if self._choice.state is None else (self._choice.state,)

        def call(ids: Sequence[str]) -> ScriptCall[list[str]]:
            return self._client().engine.cancel(ids, reason)

        return await self._apply(states, call, {"cancelled", "cancelling"}, on_progress)

    async def move(self, queue: str, on_progress: ProgressCallback | None = None) -> int:
        """Move waiting ones to another queue; returns how many."""
        target = queue_name(queue)
        states = _WAITING if self._choice.state is None else (self._choice.state,)

        def call(ids: Sequence[str]) -> ScriptCall[list[str]]:
            return self._client().engine.transfer(ids, target)

        return await self._apply(states, call, {"ok"}, on_progress, leave_out=target)

    async def _apply(
        self,
        states: Sequence[str],
        call: Callable[[Sequence[str]], ScriptCall[list[str]]],
        accepted: set[str],
        on_progress: ProgressCallback | None,
        *,
        settled: bool = False,
        leave_out: str | None = None,
    ) -> int:
        """Apply the call page by page, also to jobs that enter these states meanwhile, but not to newer jobs."""
        start, done = await self._client().views.now(), 0
        for _ in range(1 if settled else _MAX_PASSES):
            before = done
            async for page in self._pages(states, start, settled=settled, leave_out=leave_out):
                words = await call(page)
                done += sum(word in accepted for word in words)
                if on_progress is not None:
                    on_progress(done)
            if done == before or "running" in states:
                break
        return done

    async def _pages(
        self, states: Sequence[str], start: int, *, settled: bool, leave_out: str | None
    ) -> AsyncIterator[list[str]]:
        page: list[str] = []
        async for job in self._headers(states, newest=False):
            known = job.header.since if settled else job.header.created
            if known > start or job.header.queue == leave_out:
                continue
            page.append(job.id)
            if len(page) == _CALL_JOBS:
                yield page
                page = []
        if page:
            yield page

    async def _headers(self, states: Sequence[str | None], *, newest: bool) -> AsyncIterator[Listed]:
        now, listing = await self._client().views.now(), self._listing()
        for state in states:
            async for job in listing.each(self._choice.filter(now, state), newest=newest):
                yield job

    async def _each(self) -> AsyncIterator[JobStatus]:
        wanted = self._choice.filter(await self._client().views.now(), self._choice.state)
        async for job in self._listing().each(wanted, newest=self._is_newest_first(), contents=True):
            yield _status(job)

    def _is_newest_first(self) -> bool:
        return self._choice.group is not None or self._choice.state in {"dead", "done", "cancelled"}

    def _listing(self) -> Listing:
        return Listing(self._client().engine)


def _status(job: Listed) -> JobStatus:
    record = JobRecord(job.id, job.header, None, None, list(job.attempts))
    return replace(status_of(record, job.id, ()), tags=job.tags)
