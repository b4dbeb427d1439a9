"""Sending jobs: what is enqueued while a call is on its way travels together with the next, in its order."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock.engine.answers import Placed, checked, queue_full
from penstock.engine.engine import ALIKE, PAGE, Engine, NewJob
from penstock.engine.link import Call
from penstock.errors import BadArguments, PenstockError, Unavailable
from penstock.stored import is_plain

if TYPE_CHECKING:
    from penstock.job import Header

S = TypeVar("S")
T = TypeVar("T")

BYTES: Final = 4 * 2**20  #: of payload in one call
AHEAD: Final = 2  #: pages of `enqueue_many` that are on their way at once
SPLIT: Final = 16  #: jobs of one moment that go in two calls
PATIENCE: Final = 0.5  #: seconds that a call keeps the next ones waiting: its connection may be dead
IN_FLIGHT: Final = 4  #: calls on their way at once, at most
WAITING: Final = 10_000  #: jobs that wait to be sent; who comes then waits for room


class Producer:
    """Coalesces the enqueues of each event loop; never keeps more than a bounded number of jobs in memory."""

    def __init__(self, engine: Engine, deadline: float) -> None:
        self._engine = engine
        self._deadline = deadline
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}

    def enqueue(self, job: NewJob) -> Awaitable[Placed]:
        """Send one job, together with all others of this tick."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop) or self._begin_line(loop)
        return line.enqueue(job)

    def _begin_line(self, loop: asyncio.AbstractEventLoop) -> "_Line":
        for ended in [one for one in list(self._lines) if one.is_closed()]:  # copied at once: other threads add theirs
            self._lines.pop(ended, None)
        line = self._lines[loop] = _Line(self._engine, loop, self._deadline)
        return line

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> AsyncIterator[list[Placed]]:
        """Send any number of jobs, a page per call; what became of them, page by page.

        Two pages are on their way at a time, so that the server has the next when it is done with one, while another is
        got ready here. They follow each other on one connection, and each says which job must be there before it: so
        they stay in their order, also in an ordered lane.
        """
        sent: deque[_Sent] = deque()
        try:
            async for page in pages(jobs):
                answered = await sent[0].placed() if len(sent) == AHEAD else None
                self._send(page, sent)
                await asyncio.sleep(0)  # now it is on its way
                if answered is not None:
                    sent.popleft()
                    yield answered
            while sent:
                yield await sent[0].placed()
                sent.popleft()
        finally:
            await _arrival([one.answers for one in sent])

    def _send(self, page: list[NewJob], sent: "deque[_Sent]") -> None:
        last, behind = (sent[-1].answers, sent[-1].page[-1].id) if sent else (None, "")
        call = self._engine.enqueue(page, behind)
        sent.append(_Sent(page, call, asyncio.ensure_future(self._engine.link.together(call, after=last))))


class _Sent(NamedTuple):
    """A page on its way."""

    page: list[NewJob]
    call: Call[list[Placed]]
    answers: "asyncio.Task[list[Any]]"

    async def placed(self) -> list[Placed]:
        return all_checked(self.call.decode((await self.answers)[0]), self.page)


async def _arrival(sent: "list[asyncio.Task[list[Any]]]") -> None:
    """Of what is still on its way, if the jobs raised half way, or a page was refused."""
    if sent:
        await asyncio.wait(sent)
        for one in sent:
            if not one.cancelled():
                one.exception()


class _Line:
    """Jobs of one event loop that wait to be sent.

    One call is on its way at a time: so they arrive in their order, and what waits meanwhile travels together.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self._engine = engine
        self._loop = loop
        self._waiting: list[tuple[NewJob, asyncio.Future[Placed]]] = []
        self._call: object = None  #: the one on its way that the next ones wait for; nothing waits while there is none
        self._last = 1  #: jobs in the call before
        self._sending: set[asyncio.Task[None]] = set()
        self._patience: asyncio.TimerHandle | None = None
        self._room: deque[asyncio.Future[None]] = deque()  #: those who wait until fewer jobs wait to be sent
        self._deadline = deadline
        self._due: deque[tuple[float, asyncio.Future[Placed]]] = deque()  #: by when each must be answered, oldest first
        self._alarm: asyncio.TimerHandle | None = None

    def enqueue(self, job: NewJob) -> Awaitable[Placed]:
        if self._call is None:
            return self._send_alone(job)
        until = self._loop.time() + self._deadline
        if len(self._waiting) >= WAITING:
            return self._enqueue_with_room(job, until)
        return self._line_up(job, until)

    def _line_up(self, job: NewJob, until: float) -> "asyncio.Future[Placed]":
        answer: asyncio.Future[Placed] = self._loop.create_future()
        self._waiting.append((job, answer))
        self._due.append((until, answer))
        if self._alarm is None:
            self._set_alarm()
        if self._patience is None:
            self._be_patient()
        return answer

    async def _enqueue_with_room(self, job: NewJob, until: float) -> Placed:
        while len(self._waiting) >= WAITING:
            await self._wait_for_room(until)
        return await (self._send_alone(job) if self._call is None else self._line_up(job, until))

    async def _send_alone(self, job: NewJob) -> Placed:
        """By the caller itself: a task for it would take more turns of the loop."""
        call = self._call = object()
        self._last = 1
        try:
            return checked((await self._engine.enqueue([job]))[0], job.header.queue)
        finally:
            self._ended(call)

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
        self._make_room()
        self._set_alarm()

    def _late(self) -> Unavailable:
        return Unavailable(
            f"{self._engine.link.endpoint} did not take the job within {self._deadline:g} s; "
            "sending again with the same id is safe"
        )

    def _ended(self, call: object) -> None:
        """Of a call that was not overtaken: what waits is next."""
        if self._call is call:
            self._call = None
            self._start()

    def _start(self) -> None:
        self._forget_cancelled()
        if not self._waiting or self._loop.is_closed():
            return
        page: list[NewJob] = []
        answers: list[asyncio.Future[Placed]] = []
        size = 0
        for job, answer in self._waiting[: self._most()]:
            size += len(job.payload)
            if page and size > BYTES:
                break
            page.append(job)
            answers.append(answer)
        del self._waiting[: len(page)]
        task = self._loop.create_task(self._send(page, answers))
        self._call, self._last = task, len(page)
        self._sending.add(task)
        task.add_done_callback(self._sent)
        self._make_room()
        self._be_patient(anew=True)

    def _be_patient(self, *, anew: bool = False) -> None:
        """Wait for the call on its way, but not for ever: those that wait then go by another connection."""
        if anew and self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._waiting and self._patience is None:
            self._patience = self._loop.call_later(PATIENCE, self._overtake)

    def _overtake(self) -> None:
        self._patience = None
        if len(self._sending) < IN_FLIGHT:
            self._call = None
            self._start()
        self._be_patient()

    def _most(self) -> int:
        """Those that all wait for the same answer send their next jobs at the same moment.

        Half of these go first: while the server has them, the other half gets its jobs ready, from then on in turns.
        """
        waiting = len(self._waiting)
        return min(PAGE, -(-waiting // 2) if waiting >= SPLIT and waiting > 2 * self._last else waiting)

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
        self._ended(task)
        self._set_alarm()

    async def _send(self, page: list[NewJob], answers: "Sequence[asyncio.Future[Placed]]") -> None:
        try:
            placed = await self._engine.enqueue(page)
            self._ended(asyncio.current_task())  # before those who wait hear of it: the server need not wait for them
        except PenstockError as error:
            _refuse(answers, error)
        except asyncio.CancelledError:
            _refuse(answers, Unavailable("the event loop ended before the job was sent"))
            raise
        except Exception as error:  # noqa: BLE001  (who waits must hear of it, whatever it is)
            _refuse(answers, PenstockError(f"the jobs could not be sent: {error!r}"))
        else:
            for job, answer, found in zip(page, answers, placed, strict=True):
                if found.word == "full":
                    _refuse([answer], queue_full(job.header.queue))
                elif not answer.done():
                    answer.set_result(found)


def _refuse(answers: "Sequence[asyncio.Future[Placed]]", error: PenstockError) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(type(error)(*error.args))  # one each: who raises it adds its traceback


def all_checked(placed: list[Placed], page: Sequence[NewJob]) -> list[Placed]:
    """The same; QueueFull if one of them was not taken."""
    for found, job in zip(placed, page, strict=True):
        if found.word == "full":
            raise queue_full(job.header.queue)
    return placed


class _Page:
    """Collects jobs until a page is full, in number or in bytes."""

    def __init__(self) -> None:
        self.jobs: list[NewJob] = []
        self._size = 0
        self._header: Header | None = None  #: of the first
        self._most = PAGE

    def add(self, job: NewJob) -> list[NewJob] | None:
        """Add a job; the page before it, if it did not fit any more."""
        full = None
        self._size += len(job.payload)
        is_other = job.header is not self._header
        number = len(self.jobs)
        if number and (self._size > BYTES or number >= self._most or (is_other and number >= PAGE)):
            full, self.jobs, self._size = self.jobs, [], len(job.payload)
        if not self.jobs:
            self._header, self._most = job.header, ALIKE if is_plain(job.header) else PAGE
        elif is_other:
            self._most = PAGE
        self.jobs.append(job)
        return full


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
