"""Sending jobs: what is enqueued while a call is on its way travels together with the next, in its order."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
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
AHEAD: Final = 2  #: calls that are on their way at once, one behind the other
PATIENCE: Final = 0.5  #: seconds that a call keeps the next ones waiting: its connection may be dead
IN_FLIGHT: Final = 4  #: the same with those that were overtaken
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


#: a job, its answer, and when it must have been given
_Waiting = tuple[NewJob, "asyncio.Future[Placed]", float]


@dataclass(eq=False, slots=True)
class _Ahead:
    """A call on its way: its jobs and its task. One that a caller sends by itself has neither."""

    page: Sequence[_Waiting] = ()
    task: "asyncio.Task[None] | None" = None

    def last(self) -> str:
        return self.page[-1][0].id


class _Line:
    """Jobs of one event loop that wait to be sent.

    Two calls at most are on their way, on one connection, and the second says which job must be there before it: so
    they arrive in their order. What waits meanwhile travels together.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self._engine = engine
        self._loop = loop
        self._waiting: list[_Waiting] = []
        self._ahead: list[_Ahead] = []  #: on their way, in front of all that wait; nothing waits while there is none
        self._last = 1  #: jobs in the call before
        self._sending: dict[asyncio.Task[None], _Ahead] = {}  #: also those that were overtaken
        self._patience: asyncio.TimerHandle | None = None
        self._room: deque[asyncio.Future[None]] = deque()  #: those who wait until fewer jobs wait to be sent
        self._deadline = deadline
        self._alarm: asyncio.TimerHandle | None = None  #: for when the oldest must have been answered

    def enqueue(self, job: NewJob) -> Awaitable[Placed]:
        if not self._ahead:
            return self._send_alone(job)
        until = self._loop.time() + self._deadline
        if len(self._waiting) >= WAITING:
            return self._enqueue_with_room(job, until)
        return self._line_up(job, until)

    def _line_up(self, job: NewJob, until: float) -> "asyncio.Future[Placed]":
        answer: asyncio.Future[Placed] = self._loop.create_future()
        self._waiting.append((job, answer, until))
        if self._alarm is None:
            self._alarm = self._loop.call_at(until, self._refuse_late)
        if self._patience is None:
            self._be_patient()
        if len(self._waiting) == 1:
            self._loop.call_soon(self._start)  # when all of this moment are there
        return answer

    async def _enqueue_with_room(self, job: NewJob, until: float) -> Placed:
        while len(self._waiting) >= WAITING:
            await self._wait_for_room(until)
        return await (self._line_up(job, until) if self._ahead else self._send_alone(job))

    async def _send_alone(self, job: NewJob) -> Placed:
        """By the caller itself: a task for it would take more turns of the loop."""
        alone = _Ahead()
        self._ahead.append(alone)
        self._last = 1
        try:
            return checked((await self._engine.enqueue([job]))[0], job.header.queue)
        finally:
            self._ended(alone)

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

    def _refuse_late(self) -> None:
        """One timer for all: it goes off when the oldest must have been answered, then for the oldest that is not."""
        now = self._loop.time()
        pages = (sent.page for sent in self._sending.values())
        unanswered = [one for one in chain(*pages, self._waiting) if not one[1].done()]
        _refuse([answer for _, answer, until in unanswered if until <= now], self._late())
        self._waiting = [one for one in self._waiting if not one[1].done()]
        self._make_room()
        following = min((until for _, _, until in unanswered if until > now), default=None)
        self._alarm = None if following is None else self._loop.call_at(following, self._refuse_late)

    def _late(self) -> Unavailable:
        return Unavailable(
            f"{self._engine.link.endpoint} did not take the job within {self._deadline:g} s; "
            "sending again with the same id is safe"
        )

    def _ended(self, call: _Ahead) -> None:
        """Of a call that was not overtaken: what waits is next."""
        if call in self._ahead:
            self._ahead.remove(call)
            self._start()

    def _start(self) -> None:
        """Send what waits, as far as it need not wait any longer."""
        self._forget_cancelled()
        while self._waiting and self._may_start() and not self._loop.is_closed():
            self._start_page()

    def _may_start(self) -> bool:
        """Is there room on the way? Behind one that a caller sends by itself there is none: its task may never end."""
        return len(self._ahead) < AHEAD and all(one.task is not None for one in self._ahead)

    def _start_page(self) -> None:
        page: list[_Waiting] = []
        size = 0
        for one in self._waiting[: self._most()]:
            size += len(one[0].payload)
            if page and size > BYTES:
                break
            page.append(one)
        del self._waiting[: len(page)]
        sent, after = _Ahead(page), self._ahead[-1] if self._ahead else None
        sent.task = self._loop.create_task(self._send(sent, after))
        sent.task.add_done_callback(self._sent)
        self._sending[sent.task] = sent
        self._ahead.append(sent)
        self._last = len(page)
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
            self._ahead.clear()
            self._start()
        self._be_patient()

    def _most(self) -> int:
        """Those that all wait for the same answer send their next jobs at the same moment.

        Half of these go first: while the server has them, the other half gets its jobs ready, from then on in turns.
        """
        waiting = len(self._waiting)
        return min(PAGE, -(-waiting // 2) if waiting > 2 * self._last else waiting)

    def _forget_cancelled(self) -> None:
        """Those in front whose callers are gone. When the loop ends all of them are: no task would be waited for."""
        gone = 0
        while gone < len(self._waiting) and self._waiting[gone][1].done():
            gone += 1
        if gone:
            del self._waiting[:gone]
            self._make_room()

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._ended(self._sending.pop(task))

    async def _send(self, sent: _Ahead, after: _Ahead | None) -> None:
        answers = [answer for _, answer, _ in sent.page]
        try:
            call = self._engine.enqueue([job for job, _, _ in sent.page], after.last() if after else "")
            placed = await self._engine.link.run(call, after=after.task if after else None)
            self._ended(sent)  # before those who wait hear of it: the server need not wait for them
        except PenstockError as error:
            _refuse(answers, error)
        except asyncio.CancelledError:
            _refuse(answers, Unavailable("the event loop ended before the job was sent"))
            raise
        except Exception as error:  # noqa: BLE001  (who waits must hear of it, whatever it is)
            _refuse(answers, PenstockError(f"the jobs could not be sent: {error!r}"))
        else:
            for (job, answer, _), found in zip(sent.page, placed, strict=True):
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
