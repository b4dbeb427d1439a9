"""A batch: jobs that belong together, added while others already run, and one end for all of them."""

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
from penstock.api.context import running_on_loop
from penstock.api.job import Job, any_job
from penstock.api.task import Call
from penstock.client.client import Client
from penstock.client.producer import made_of, pages_sync
from penstock.engine.answers import EnqueueAnswer, Member, WatchedBatch
from penstock.engine.engine import PAGE, NewBatch, NewJob
from penstock.engine.read.lane_views import LaneViews
from penstock.errors import PenstockError, Unavailable, may_pass
from penstock.model.batch_state import BatchStatus
from penstock.model.durations import Duration, patience

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from penstock.model.header import Header

R = TypeVar("R")

log = logging.getLogger("penstock")

_AGAIN: Final = 1.0  #: seconds until a server that could not be reached is asked again


class Batch:
    """A batch by its id. `async with` opens it, and seals it at the end of the block."""

    def __init__(
        self,
        hub: Callable[[], Client],
        tasks: Mapping[str, AnyTask],
        new: NewBatch,
        *,
        is_open: bool = False,
        on_error: OnError = "keep",
    ) -> None:
        self._client = hub
        self._tasks = tasks
        self._new = new
        self._is_open = is_open  #: it is known to be stored
        self._on_error: OnError = on_error
        self._last: tuple[Header, Header] | None = None  #: of a call, and of the member that was made of it
        self.id = new.id
        self.name = new.name

    def __repr__(self) -> str:
        return f"<Batch {self.id} {self.name}>"

    # Opening and closing

    async def open(self) -> "Self":
        """Have it stored; the first use of any kind does so, too."""
        if not self._is_open:
            check_opened(self._new, await self._client().engine.open_batch(self._new))
            self._is_open = True
        return self

    def open_sync(self) -> "Self":
        if not self._is_open:
            check_opened(self._new, self._client().engine.open_batch(self._new).sync())
            self._is_open = True
        return self

    async def seal(self) -> None:
        """It takes no more members; it ends with the last of them, at once if there is none."""
        await self.open()
        self._known(await self._client().engine.seal_batch(self.id))

    def seal_sync(self) -> None:
        self.open_sync()
        self._known(self._client().engine.seal_batch(self.id).sync())

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
            self._say_open(error)

    def __enter__(self) -> "Self":
        return self.open_sync()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        if error is None:
            self.seal_sync()
        elif self._on_error == "cancel":
            self.cancel_sync(f"its producer failed: {type(error).__name__}")
        else:
            self._say_open(error)

    def _say_open(self, error: BaseException) -> None:
        log.warning(
            "batch %s (%s) stays open, for its producer failed (%s): add the rest and seal it, or cancel it",
            self.id,
            self.name,
            type(error).__name__,
        )

    # Members

    async def add(self, call: Call[R]) -> Job[R]:
        """One member more; BatchSealed if it takes no more."""
        await self.open()
        return self._placed(call, await self._client().producer.enqueue(self._member(call)))

    def add_sync(self, call: Call[R]) -> Job[R]:
        self.open_sync()
        (placed,) = self._client().engine.enqueue([self._member(call)]).sync()
        return self._placed(call, placed)

    async def add_many(self, calls: Iterable[Call[R]] | AsyncIterable[Call[R]]) -> list[Job[R]]:
        """Any number of members, a page per round trip; their jobs in the same order."""
        await self.open()
        sent: deque[Call[R]] = deque()
        found: list[Job[R]] = []
        async for page in self._client().producer.enqueue_many(made_of(calls, self._noting(sent))):
            found += [self._placed(sent.popleft(), placed) for placed in page]
        return found

    def add_many_sync(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        self.open_sync()
        sent: deque[Call[R]] = deque()
        found: list[Job[R]] = []
        for page in pages_sync(map(self._noting(sent), calls)):
            found += [self._placed(sent.popleft(), placed) for placed in self._client().engine.enqueue(page).sync()]
        return found

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
        """A batch inside this one: it is one member, done when all of its own are."""
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
        job, last = call.job, self._last
        if last is None or job.header is not last[0]:
            last = self._last = job.header, msgspec.structs.replace(job.header, batch=self.id)
        return NewJob(job.id, last[1], job.payload)

    def _noting(self, sent: deque[Call[R]]) -> Callable[[Call[R]], NewJob]:
        """Makes a member of a call and notes which call that was."""

        def noted(call: Call[R]) -> NewJob:
            member = self._member(call)
            sent.append(call)
            return member

        return noted

    def _placed(self, call: Call[R], placed: EnqueueAnswer) -> Job[R]:
        if placed.word not in {"created", "exists", "unique"}:
            raise refusal(self.id, placed.word)
        return call.task.placed(placed, self._client())

    # How it stands, and how it ends

    async def status(self) -> BatchStatus:
        return self._found(await self._client().views.batch(self.id))

    def status_sync(self) -> BatchStatus:
        return self._found(self._client().views.batch_sync(self.id))

    async def running(self) -> int:
        """How many of its own members run at this moment."""
        return (await LaneViews(self._client().engine.script_client).one(f"batch:{self.id}")).in_use

    async def wait(self, timeout: Duration | None = None) -> BatchStatus:
        """How it ended, once it has; TimeoutError if it has not by then. From any process, before or after the end."""
        seconds = patience(timeout)
        try:
            async with asyncio.timeout(seconds):
                return await self._wait()
        except TimeoutError:
            raise TimeoutError(f"batch {self.id} has not ended within {seconds} s") from None

    async def _wait(self) -> BatchStatus:
        async with self._client().waiter.news(f"{{end}}{self.id}") as news:
            while True:
                status = self._found((await self._look(news.client, 0, 0)).status)
                if status.state == "ended":
                    return status
                await news.wait()

    def wait_sync(self, timeout: Duration | None = None) -> BatchStatus:
        _not_on_loop("wait_sync() would block the event loop that may have to run the members: await wait()")
        return self._client().run(self.wait(timeout))

    async def as_completed(self) -> AsyncIterator[Job[Any]]:
        """Its members in the order in which they finish, until it ends: handles that have their results with them.

        From any process, before or after the end, in constant memory. One that runs again and finishes comes again.
        """
        after = 0
        async with self._client().waiter.news(f"{{more}}{self.id}") as news:
            while True:
                page = await self._look(news.client, PAGE, after)
                status = self._found(page.status)
                for member in page.members:
                    yield self._job(member)
                if page.last:
                    after = page.last
                elif status.state == "ended":
                    return
                else:
                    await news.wait()

    def as_completed_sync(self) -> Iterator[Job[Any]]:
        _not_on_loop("as_completed_sync() would block this event loop: use as_completed()")
        members = self.as_completed()
        with asyncio.Runner() as runner:
            try:
                while True:
                    try:
                        yield runner.run(anext(members))  # type: ignore[arg-type]  # an awaitable; it is a coroutine
                    except StopAsyncIteration:
                        return
            finally:
                runner.run(self._client().waiter.aclose())

    async def _look(self, client: str, finished: int, after: int) -> WatchedBatch:
        """As it is; a server that cannot be reached is waited for, as long as the caller waits."""
        await self.open()
        while True:
            try:
                return await self._client().engine.watch_batch(client, self.id, finished=finished, after=after)
            except Unavailable as error:
                if not may_pass(error):
                    raise
                await asyncio.sleep(_AGAIN)

    def _job(self, member: Member) -> Job[Any]:
        header = member.watched.header
        task = self._tasks.get(header.task) if header else None
        if task is None:
            return any_job(self._client(), member.id, watched=member.watched)
        return task.job(member.id, watched=member.watched)

    # Steering

    async def cancel(self, reason: str = "cancelled") -> BatchStatus:
        """No more members, and none starts; those that wait are cancelled, those that run are told."""
        await self.begin_cancel(reason)
        await self.work_off("cancel")
        return await self.status()

    def cancel_sync(self, reason: str = "cancelled") -> BatchStatus:
        self.open_sync()
        self._known(self._client().engine.cancel_batch(self.id, reason).sync())
        while self._client().engine.do_chores("cancel", self.id).sync().more:
            pass
        return self.status_sync()

    async def retry_failed(self) -> int:
        """Run all dead members again; how many there were. After the end this is the next generation."""
        await self.begin_retry()
        return await self.work_off("retry")

    async def begin_cancel(self, reason: str = "cancelled") -> None:
        """The first step of `cancel`: from now on no member starts. What is left to do is also done by any worker."""
        await self.open()
        self._known(await self._client().engine.cancel_batch(self.id, reason))

    async def begin_retry(self) -> None:
        """The first step of `retry_failed`; what is left to do is also done by any worker."""
        self._retried(await self._client().engine.retry_batch(self.id, secrets.token_hex(8)))

    async def work_off(self, what: Literal["cancel", "retry"]) -> int:
        """Page by page, what these two began; how many members that were."""
        seen, more = 0, True
        while more:
            moved, _, _, more = await self._client().engine.do_chores(what, self.id)
            seen += moved
        return seen

    def retry_failed_sync(self) -> int:
        self._retried(self._client().engine.retry_batch(self.id, secrets.token_hex(8)).sync())
        seen, more = 0, True
        while more:
            moved, _, _, more = self._client().engine.do_chores("retry", self.id).sync()
            seen += moved
        return seen

    async def set(self, *, priority: int | None = None, limit: int | None = None) -> None:
        """Another priority or limit for a live batch; it counts at once."""
        await self.open()
        self._known(await self._client().engine.set_batch(self.id, **settings(priority, limit)))

    def set_sync(self, *, priority: int | None = None, limit: int | None = None) -> None:
        self.open_sync()
        self._known(self._client().engine.set_batch(self.id, **settings(priority, limit)).sync())

    def _known(self, word: str) -> None:
        if word == "missing":
            raise refusal(self.id, "unknown")

    def _retried(self, word: str) -> None:
        self._known(word)
        if word == "cancelling":
            raise PenstockError(f"batch {self.id} is being cancelled: try again when it has ended")

    def _found(self, status: BatchStatus | None) -> BatchStatus:
        if status is None:
            raise refusal(self.id, "unknown")
        return status


def _not_on_loop(text: str) -> None:
    if running_on_loop():
        raise PenstockError(text)
