"""Sending jobs: what is enqueued at the same moment travels together."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from penstock.engine.answers import Placed, checked
from penstock.engine.engine import PAGE, Engine, NewJob
from penstock.errors import BadArguments, PenstockError, QueueFull, Unavailable

S = TypeVar("S")
T = TypeVar("T")

BYTES: Final = 4 * 2**20  #: of payload in one call
IN_FLIGHT: Final = 4  #: calls on their way at once
SPLIT: Final = 16  #: jobs of one moment that go in two calls: while the server has one half, the other is got ready
WAITING: Final = 10_000  #: jobs that wait to be sent; who comes then waits for room


class Producer:
    """Coalesces the enqueues of each event loop; never keeps more than a bounded number of jobs in memory."""

    def __init__(self, engine: Engine, deadline: float) -> None:
        self._engine = engine
        self._deadline = deadline
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}

    async def enqueue(self, job: NewJob) -> Placed:
        """Send one job, together with all others of this tick."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            for ended in [one for one in self._lines if one.is_closed()]:
                del self._lines[ended]
            line = self._lines[loop] = _Line(self._engine, loop, self._deadline)
        return await line.enqueue(job)

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> AsyncIterator[list[Placed]]:
        """Send any number of jobs, a page per call, two calls at a time; what became of them, page by page in order."""
        ahead: asyncio.Task[list[Placed]] | None = None
        try:
            async for page in pages(jobs):
                task = asyncio.ensure_future(self._page(page))
                before, ahead = ahead, task
                if before is not None:
                    yield await before
            if ahead is not None:
                yield await ahead
        finally:
            if ahead is not None and not ahead.cancelled():
                await asyncio.wait([ahead])  # the jobs raised half way: what is on its way still arrives
                ahead.exception()

    async def _page(self, page: list[NewJob]) -> list[Placed]:
        return all_checked(await self._engine.enqueue(page), page)


class _Line:
    """Jobs of one event loop that wait to be sent."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self._engine = engine
        self._loop = loop
        self._waiting: list[tuple[NewJob, asyncio.Future[Placed]]] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._alone = False  #: does one caller send its job by itself? A task for it would take more turns of the loop
        self._room: deque[asyncio.Future[None]] = deque()  #: those who wait until fewer jobs wait to be sent
        self._deadline = deadline
        self._due: deque[tuple[float, asyncio.Future[Placed]]] = deque()  #: by when each must be answered, oldest first
        self._alarm: asyncio.TimerHandle | None = None

    async def enqueue(self, job: NewJob) -> Placed:
        until = self._loop.time() + self._deadline
        while len(self._waiting) >= WAITING:
            await self._wait_for_room(until)
        if not (self._waiting or self._sending or self._scheduled or self._alone):
            self._alone = True
            try:
                await asyncio.sleep(0)  # until the end of the tick: is it still alone?
                if not self._waiting:
                    return checked((await self._engine.enqueue([job]))[0], job.header.queue)
            finally:
                self._alone = False
            return await self._enqueue_with_others(job, until, first=True)
        return await self._enqueue_with_others(job, until)

    async def _enqueue_with_others(self, job: NewJob, until: float, *, first: bool = False) -> Placed:
        answer: asyncio.Future[Placed] = self._loop.create_future()
        self._waiting.insert(0 if first else len(self._waiting), (job, answer))
        self._due.insert(0 if first else len(self._due), (until, answer))
        self._set_alarm()
        self._schedule()
        return await answer

    async def _wait_for_room(self, until: float) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        self._room.append(turn)
        try:
            async with asyncio.timeout_at(until):
                await turn
        except TimeoutError:
            raise self._late() from None

    def _make_room(self) -> None:
        """As many may come as there is room for, in their order."""
        free = WAITING - len(self._waiting)
        while self._room and free > 0:
            turn = self._room.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1

    def _set_alarm(self) -> None:
        """One timer for all: it goes off when the oldest that is not answered must be."""
        while self._due and self._due[0][1].done():
            self._due.popleft()
        if self._due and self._alarm is None:
            self._alarm = self._loop.call_at(self._due[0][0], self._refuse_late)

    def _refuse_late(self) -> None:
        self._alarm = None
        while self._due and self._due[0][0] <= self._loop.time():
            _refuse([self._due.popleft()[1]], self._late())
        self._waiting = [(job, answer) for job, answer in self._waiting if not answer.done()]
        self._set_alarm()

    def _late(self) -> Unavailable:
        return Unavailable(
            f"{self._engine.link.endpoint} did not take the job within {self._deadline:g} s; "
            "sending again with the same id is safe"
        )

    def _schedule(self) -> None:
        # At the end of the tick, so that everything enqueued in it goes along.
        if not self._scheduled and len(self._sending) < IN_FLIGHT:
            self._scheduled = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        self._forget_cancelled()
        if not self._waiting:
            return
        page: list[NewJob] = []
        size, most = 0, len(self._waiting)
        if most >= SPLIT and not self._sending:
            most = -(-most // 2)
        for job, _ in self._waiting[: min(most, PAGE)]:
            size += len(job.payload)
            if page and size > BYTES:
                break
            page.append(job)
        answers = [answer for _, answer in self._waiting[: len(page)]]
        del self._waiting[: len(page)]
        task = self._loop.create_task(self._send(page, answers))
        self._sending.add(task)
        task.add_done_callback(self._sent)
        if self._waiting:
            self._schedule()

    def _forget_cancelled(self) -> None:
        """Those in front whose callers are gone. When the loop ends all of them are: no task would be waited for."""
        gone = 0
        while gone < len(self._waiting) and self._waiting[gone][1].done():
            gone += 1
        if gone:
            del self._waiting[:gone]
            self._make_room()

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._make_room()
        self._set_alarm()
        if self._waiting:
            self._schedule()

    async def _send(self, page: list[NewJob], answers: "Sequence[asyncio.Future[Placed]]") -> None:
        try:
            placed = await self._engine.enqueue(page)
        except PenstockError as error:
            _refuse(answers, error)
        except asyncio.CancelledError:
            _refuse(answers, Unavailable("the event loop ended before the job was sent"))
            raise
        except Exception as error:  # noqa: BLE001  (who waits must hear of it, whatever it is)
            _refuse(answers, PenstockError(f"the jobs could not be sent: {error!r}"))
        else:
            for job, answer, found in zip(page, answers, placed, strict=True):
                _answer(answer, found, job.header.queue)


def _refuse(answers: "Sequence[asyncio.Future[Placed]]", error: PenstockError) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(type(error)(*error.args))  # one each: who raises it adds its traceback


def _answer(answer: "asyncio.Future[Placed]", placed: Placed, queue: str) -> None:
    try:
        checked(placed, queue)
    except QueueFull as error:
        _refuse([answer], error)
    if not answer.done():
        answer.set_result(placed)


class _Page:
    """Collects jobs until a page is full, in number or in bytes."""

    def __init__(self) -> None:
        self.jobs: list[NewJob] = []
        self._size = 0

    def add(self, job: NewJob) -> list[NewJob] | None:
        """Add a job; the page before it, if it did not fit any more."""
        full = None
        if self.jobs and (len(self.jobs) == PAGE or self._size + len(job.payload) > BYTES):
            full, self.jobs, self._size = self.jobs, [], 0
        self.jobs.append(job)
        self._size += len(job.payload)
        return full


def all_checked(placed: list[Placed], page: Sequence[NewJob]) -> list[Placed]:
    """The same; QueueFull if one of them was not taken."""
    return [checked(found, job.header.queue) for found, job in zip(placed, page, strict=True)]


async def pages(jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> AsyncIterator[list[NewJob]]:
    """Pages of jobs, bounded in number and bytes."""
    if not isinstance(jobs, AsyncIterable):
        for each_page in pages_sync(jobs):
            yield each_page
        return
    page = _Page()
    async for job in jobs:
        if full := page.add(job):
            yield full
    if page.jobs:
        yield page.jobs


def pages_sync(jobs: Iterable[NewJob]) -> Iterator[list[NewJob]]:
    """The same for blocking code."""
    page = _Page()
    for job in jobs:
        if full := page.add(job):
            yield full
    if page.jobs:
        yield page.jobs


def made_of(items: Iterable[S] | AsyncIterable[S], make: Callable[[S], T]) -> Iterable[T] | AsyncIterable[T]:
    """What is made of each item, in an iterable of the same kind. Of an ordinary one no step waits for the loop."""
    if isinstance(items, AsyncIterable):
        return (make(item) async for item in items)
    return map(make, iterable(items))


def iterable(items: object) -> Iterable[Any]:
    if not isinstance(items, Iterable):
        raise BadArguments(f"an iterable or an async iterable is needed, not {items!r}")
    return items


async def each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    """The items of an iterable of either kind."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in iterable(items):
            yield item
