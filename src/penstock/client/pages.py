"""Pages of jobs, as many as one script call takes, from ordinary and async iterables."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.engine.engine import PAGE, PLAIN_PAGE, NewJob
from penstock.engine.record.record import is_plain
from penstock.errors import BadArguments

if TYPE_CHECKING:
    from penstock.model.header import Header

S = TypeVar("S")
T = TypeVar("T")

MAX_PAGE_BYTES: Final = 4 * 2**20  #: of payload in one call


class _PageBuilder:
    """Collects jobs until a page is full, in number or in bytes."""

    def __init__(self) -> None:
        self.jobs: list[NewJob] = []
        self._bytes = 0
        self._header: Header | None = None  #: of the first job
        self._max_jobs = PAGE

    def add(self, job: NewJob) -> list[NewJob] | None:
        """Add a job; returns the full page before it if the job did not fit."""
        full = None
        self._bytes += len(job.payload)
        is_other = job.header is not self._header
        number = len(self.jobs)
        if number and (self._bytes > MAX_PAGE_BYTES or number >= self._max_jobs or (is_other and number >= PAGE)):
            full, self.jobs, self._bytes = self.jobs, [], len(job.payload)
        if not self.jobs:
            self._header, self._max_jobs = job.header, PLAIN_PAGE if is_plain(job.header) else PAGE
        elif is_other:
            self._max_jobs = PAGE
        self.jobs.append(job)
        return full


async def pages(jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> AsyncIterator[list[NewJob]]:
    """Pages of jobs, bounded in number and bytes. For an ordinary iterable no step waits for the event loop."""
    page = _PageBuilder()
    if isinstance(jobs, AsyncIterable):
        async for job in jobs:
            if full := page.add(job):
                yield full
    else:
        for job in jobs:
            if full := page.add(job):
                yield full
    if page.jobs:
        yield page.jobs


def map_items(items: Iterable[S] | AsyncIterable[S], make: Callable[[S], T]) -> Iterable[T] | AsyncIterable[T]:
    """`map` for an iterable of either kind; the result is of the same kind."""
    if isinstance(items, AsyncIterable):
        return (make(item) async for item in items)
    return map(make, check_iterable(items))


def check_iterable(items: object) -> Iterable[Any]:
    if not isinstance(items, Iterable):
        raise BadArguments(f"an iterable or an async iterable is needed, not {items!r}")
    return items


async def iterate(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    """The items of an iterable of either kind."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in check_iterable(items):
            yield item
