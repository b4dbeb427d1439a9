"""Sending jobs: single ones by a line for each event loop, many of them in pages."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.client.send_buffer import AHEAD, BYTES, SendBuffer, last_new_id
from penstock.engine.answers import EnqueueAnswer, queue_full
from penstock.engine.engine import ALIKE, PAGE, Engine, NewJob
from penstock.engine.record.record import is_plain
from penstock.engine.transport.script_client import ScriptCall
from penstock.errors import BadArguments

if TYPE_CHECKING:
    from penstock.model.header import Header

S = TypeVar("S")
T = TypeVar("T")


class Producer:
    """Has a line for each event loop."""

    def __init__(self, engine: Engine, deadline: float) -> None:
        self._engine = engine
        self._deadline = deadline
        self._lines: dict[asyncio.AbstractEventLoop, SendBuffer] = {}

    def enqueue(self, job: NewJob) -> Awaitable[EnqueueAnswer]:
        """Send one job, together with others that wait at the same moment."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop) or self._begin_line(loop)
        return line.enqueue(job)

    def _begin_line(self, loop: asyncio.AbstractEventLoop) -> SendBuffer:
        for ended in [one for one in list(self._lines) if one.is_closed()]:  # copied at once: other threads add theirs
            self._lines.pop(ended, None)
        line = self._lines[loop] = SendBuffer(self._engine, loop, self._deadline)
        return line

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> AsyncIterator[list[EnqueueAnswer]]:
        """Send any number of jobs, a page per call; what became of them, page by page.

        Two pages are on their way at a time, so that the server has the next when it is done with one, while another is
        got ready here. They follow each other on one connection, and each says which job must be there before it: so
        they stay in their order, also in an ordered lane.
        """
        sent: deque[_Sent] = deque()
        try:
            async for page in pages(jobs):
                answered = await sent[0].placed() if len(sent) == AHEAD else None
                await self._send(page, sent)
                await asyncio.sleep(0)  # now it is on its way
                if answered is not None:
                    sent.popleft()
                    yield answered
            while sent:
                yield await sent[0].placed()
                sent.popleft()
        finally:
            await _arrival([one.answers for one in sent])

    async def _send(self, page: list[NewJob], sent: "deque[_Sent]") -> None:
        last, behind = (sent[-1].answers, last_new_id(sent[-1].page)) if sent else (None, "")
        if last is not None and not behind:
            await asyncio.wait([last])  # nothing would tell whether it was there
        call = self._engine.enqueue(page, behind)
        sent.append(_Sent(page, call, asyncio.ensure_future(self._engine.script_client.together(call, after=last))))


class _Sent(NamedTuple):
    """A page on its way."""

    page: list[NewJob]
    call: ScriptCall[list[EnqueueAnswer]]
    answers: "asyncio.Task[list[Any]]"

    async def placed(self) -> list[EnqueueAnswer]:
        return all_checked(self.call.decode((await self.answers)[0]), self.page)


async def _arrival(sent: "list[asyncio.Task[list[Any]]]") -> None:
    """Of what is still on its way, if the jobs raised half way, or a page was refused."""
    if sent:
        await asyncio.wait(sent)
        for one in sent:
            if not one.cancelled():
                one.exception()


def all_checked(placed: list[EnqueueAnswer], page: Sequence[NewJob]) -> list[EnqueueAnswer]:
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
