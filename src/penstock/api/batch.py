"""A batch: jobs that belong together, added while others run, with one end for all of them."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from penstock.api.batch_options import (
    AnyTask,
    OnError,
    check_call,
    check_on_error,
    check_opened,
    new_batch,
    refusal,
    settings,
)
from penstock.api.job import Job, any_job
from penstock.api.task import Call
from penstock.client.client import Client
from penstock.client.pages import map_items
from penstock.engine.answers import EnqueueAnswer, Member, WatchedBatch
from penstock.engine.engine import PAGE, NewBatch, NewJob
from penstock.engine.read.lane_views import LaneViews
from penstock.engine.transport.blocking import blocking, run_blocking
from penstock.errors import PenstockError, Unavailable, may_pass
from penstock.model.batch_state import BatchStatus
from penstock.model.durations import Duration, timeout_seconds

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from penstock.model.header import Header

R = TypeVar("R")

log = logging.getLogger("penstock")

RECONNECT_PAUSE: Final = 1.0  #: seconds before asking again a server that could not be reached


class Batch:
    """A batch by its id. `async with` opens it, and seals it at the end of the block."""

    def __init__(
        self,
        client: Callable[[], Client],
        tasks: Mapping[str, AnyTask],
        new: NewBatch,
        *,
        is_open: bool = False,
        on_error: OnError = "keep",
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._new = new
        self._is_open = is_open  #: whether it is known to be stored
        self._on_error: OnError = on_error
        self._last_headers: tuple[Header, Header] | None = None  #: of the last call and of the member made of it
        self.id = new.id
        self.name = new.name

    def __repr__(self) -> str:
        return f"<Batch {self.id} {self.name}>"

    # Opening and closing

    async def open(self) -> "Self":
        """Store it; any first use does so, too."""
        if not self._is_open:
            check_opened(self._new, await self._client().engine.open_batch(self._new))
            self._is_open = True
        return self

    open_sync = blocking(open)  # noqa: A003  (the method above)

    async def seal(self) -> None:
        """Take no more members: the batch ends with its last member, at once if it has none."""
        await self.open()
        self._check_known(await self._client().engine.seal_batch(self.id))

    seal_sync = blocking(seal)

    async def __aenter__(self) -> "Self":
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        if error is None:
            await self.seal()
        elif self._on_error == "cancel":
            await self.cancel(f"its producer failed: {type(error).__name__}")
        else:
            log.warning(
                "batch %s (%s) stays open, for its producer failed (%s): add the rest and seal it, or cancel it",
                self.id,
                self.name,
                type(error).__name__,
            )

    def __enter__(self) -> "Self":
        return self.open_sync()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        run_blocking(self.__aexit__(kind, error, trace))

    # Members

    async def add(self, call: Call[R]) -> Job[R]:
        """Add a member; BatchSealed if the batch takes no more."""
        await self.open()
        return self._job_of(call, await self._client().producer.enqueue(self._member(call)))

    add_sync = blocking(add)

    async def add_many(self, calls: Iterable[Call[R]] | AsyncIterable[Call[R]]) -> list[Job[R]]:
        """Add any number of members, a page per round trip; their jobs in the same order."""
        await self.open()
        sent: deque[Call[R]] = deque()
        jobs: list[Job[R]] = []

        def member(call: Call[R]) -> NewJob:
            new = self._member(call)
            sent.append(call)
            return new

        async for page in self._client().producer.enqueue_many(map_items(calls, member)):
            jobs += [self._job_of(sent.popleft(), answer) for answer in page]
        return jobs

    def add_many_sync(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """The same from blocking code."""
        return run_blocking(self.add_many(calls))

    def batch(
        self,
        name: str = "",
        *,
        limit: int | None = None,
        priority: int | None = None,
        then: AnyTask | None = None,
        on_failure: AnyTask | None = None,
        abandon_after: Duration = "24h",
        keep: Duration = "24h",
        on_error: OnError = "keep",
    ) -> "Batch":
        """A batch inside this one: one member, which is done when all of its own members are."""
        new = new_batch(
            name,
            parent=self.id,
            limit=limit,
            priority=priority,
            then=then,
            on_failure=on_failure,
            abandon_after=abandon_after,
            keep=keep,
        )
        return Batch(self._client, self._tasks, new, on_error=check_on_error(on_error))

    def _member(self, call: Call[R]) -> NewJob:
        check_call(call, self._tasks)
        job, last = call.job, self._last_headers
        if last is None or job.header is not last[0]:
            last = self._last_headers = job.header, msgspec.structs.replace(job.header, batch=self.id)
        return NewJob(job.id, last[1], job.payload)

    def _job_of(self, call: Call[R], answer: EnqueueAnswer) -> Job[R]:
        if answer.word not in {"created", "exists", "unique"}:
            raise refusal(self.id, answer.word)
        return call.task.placed(answer, self._client())

    # Its status and its end

    async def status(self) -> BatchStatus:
        return self._checked(await self._client().views.batch(self.id))

    status_sync = blocking(status)

    async def running(self) -> int:
        """How many of its own members run now."""
        return (await LaneViews(self._client().engine.script_client).lane(f"batch:{self.id}")).in_use

    async def wait(self, timeout: Duration | None = None) -> BatchStatus:
        """Wait for its end, from any process; TimeoutError if it has not ended by then."""
        seconds = timeout_seconds(timeout)
        try:
            async with asyncio.timeout(seconds):
                return await self._wait_for_end()
        except TimeoutError:
            raise TimeoutError(f"batch {self.id} has not ended within {seconds} s") from None

    async def _wait_for_end(self) -> BatchStatus:
        async with self._client().waiter.signal(f"{{end}}{self.id}") as signal:
            while True:
                status = self._checked((await self._watch(signal.client, 0, 0)).status)
                if status.state == "ended":
                    return status
                await signal.wait()

    def wait_sync(self, timeout: Duration | None = None) -> BatchStatus:
        """The same from blocking code."""
        return self._client().run(self.wait(timeout), blocks="the event loop that may have to run the members")

    async def as_completed(self) -> AsyncIterator[Job[Any]]:
        """Its members in the order in which they finish, until it ends; the handles hold their results.

        From any process, before or after the end, in constant memory. A member that finishes again comes again.
        """
        after = 0
        async with self._client().waiter.signal(f"{{more}}{self.id}") as signal:
            while True:
                page = await self._watch(signal.client, PAGE, after)
                status = self._checked(page.status)
                for member in page.members:
                    yield self._job(member)
                if page.last:
                    after = page.last
                elif status.state == "ended":
                    return
                else:
                    await signal.wait()

    def as_completed_sync(self) -> Iterator[Job[Any]]:
        """The same from blocking code."""
        return self._client().iterate(self.as_completed(), "as_completed")

    async def _watch(self, client: str, finished: int, after: int) -> WatchedBatch:
        """Its status and finished members; waits for a server that cannot be reached as long as the caller does."""
        await self.open()
        while True:
            try:
                return await self._client().engine.watch_batch(client, self.id, finished=finished, after=after)
            except Unavailable as error:
                if not may_pass(error):
                    raise
                await asyncio.sleep(RECONNECT_PAUSE)

    def _job(self, member: Member) -> Job[Any]:
        header = member.watched.header
        task = self._tasks.get(header.task) if header else None
        if task is None:
            return any_job(self._client(), member.id, watched=member.watched)
        return task.job(member.id, watched=member.watched)

    # Control

    async def cancel(self, reason: str = "cancelled") -> BatchStatus:
        """Take no more members and start none: cancel waiting members, and ask running ones to stop."""
        await self.begin_cancel(reason)
        await self.work_off("cancel")
        return await self.status()

    cancel_sync = blocking(cancel)

    async def retry_failed(self) -> int:
        """Run all dead members again; returns how many. After the batch's end this begins its next generation."""
        await self.begin_retry()
        return await self.work_off("retry")

    retry_failed_sync = blocking(retry_failed)

    async def begin_cancel(self, reason: str = "cancelled") -> None:
        """The first step of `cancel`: from now on no member starts. Any worker does the remaining steps, too."""
        await self.open()
        self._check_known(await self._client().engine.cancel_batch(self.id, reason))

    async def begin_retry(self) -> None:
        """The first step of `retry_failed`. Any worker does the remaining steps, too."""
        word = await self._client().engine.retry_batch(self.id, secrets.token_hex(8))
        self._check_known(word)
        if word == "cancelling":
            raise PenstockError(f"batch {self.id} is being cancelled: try again when it has ended")

    async def work_off(self, what: Literal["cancel", "retry"]) -> int:
        """Finish the remaining steps of one of these two, page by page; returns the number of members."""
        members, more = 0, True
        while more:
            moved, _, _, more = await self._client().engine.do_chores(what, self.id)
            members += moved
        return members

    async def set(self, *, priority: int | None = None, limit: int | None = None) -> None:
        """Change the priority or the limit of a live batch at once."""
        await self.open()
        self._check_known(await self._client().engine.set_batch(self.id, **settings(priority, limit)))

    set_sync = blocking(set)  # noqa: A003  (the method above)

    def _check_known(self, word: str) -> None:
        if word == "missing":
            raise refusal(self.id, "unknown")

    def _checked(self, status: BatchStatus | None) -> BatchStatus:
        if status is None:
            raise refusal(self.id, "unknown")
        return status
