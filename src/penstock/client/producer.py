"""Sends new jobs: single ones through a buffer for each event loop, many of them in pages."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

from penstock.client.pages import MAX_PAGE_BYTES, pages
from penstock.engine.answers import EnqueueAnswer, checked, queue_full
from penstock.engine.engine import PAGE, Engine, NewJob
from penstock.engine.transport.blocking import is_blocking
from penstock.engine.transport.script_client import ScriptCall
from penstock.errors import PenstockError, Unavailable

MAX_IN_FLIGHT: Final = 2  #: calls on their way, one behind the other
MAX_WITH_OVERTAKEN: Final = 4  #: calls on their way, counting those that others overtook
OVERTAKE_TIMEOUT: Final = 0.5  #: seconds that a call keeps the next ones waiting: its connection may be dead
DEADLINE_SLACK: Final = 0.1  #: seconds beyond the deadline, so that the call's own error, which knows why, comes first

#: a job, its answer, and the loop time by which it must be answered
_Waiting = tuple[NewJob, "asyncio.Future[EnqueueAnswer]", float]


class Producer:
    """Sends all new jobs of an app."""

    def __init__(self, engine: Engine, deadline: float) -> None:
        self._engine = engine
        self._deadline = deadline
        self._buffers: dict[asyncio.AbstractEventLoop, SendBuffer] = {}

    def enqueue(self, job: NewJob) -> Awaitable[EnqueueAnswer]:
        """Send one job, together with others that wait at the same moment; QueueFull if its queue takes no more."""
        if is_blocking():
            return self._enqueue_blocking(job)
        loop = asyncio.get_running_loop()
        buffer = self._buffers.get(loop) or self._new_buffer(loop)
        return buffer.enqueue(job)

    async def _enqueue_blocking(self, job: NewJob) -> EnqueueAnswer:
        return self.enqueue_sync(job)

    def enqueue_sync(self, job: NewJob) -> EnqueueAnswer:
        """The same from blocking code, on a connection of its thread."""
        return checked(self._engine.enqueue([job]).sync()[0], job.header.queue)

    def _new_buffer(self, loop: asyncio.AbstractEventLoop) -> "SendBuffer":
        for known in list(self._buffers):  # a copy: other threads add theirs
            if known.is_closed():
                self._buffers.pop(known, None)
        buffer = self._buffers[loop] = SendBuffer(self._engine, loop, self._deadline)
        return buffer

    async def enqueue_many(
        self, jobs: Iterable[NewJob] | AsyncIterable[NewJob], *, raises: bool = True
    ) -> AsyncIterator[list[EnqueueAnswer]]:
        """Send any number of jobs, a page per call; their answers, page by page.

        QueueFull if a queue takes no more; without `raises` the answer of such a job is `full`.

        Two pages are on their way at a time, so that the server has the next when it is done with one, while another is
        prepared here. They follow each other on one connection, and each says which job must be there before it: so
        they stay in their order, also in an ordered lane.
        """
        if is_blocking():
            async for page in pages(jobs):
                yield _checked_page(await self._engine.enqueue(page), page, raises=raises)
            return
        sent: deque[_SentPage] = deque()
        try:
            async for page in pages(jobs):
                answers = await sent[0].read(raises=raises) if len(sent) == MAX_IN_FLIGHT else None
                await self._send(page, sent)
                await asyncio.sleep(0)  # let it be sent
                if answers is not None:
                    sent.popleft()
                    yield answers
            while sent:
                yield await sent[0].read(raises=raises)
                sent.popleft()
        finally:
            await _settle([page.task for page in sent])

    async def _send(self, page: list[NewJob], sent: "deque[_SentPage]") -> None:
        before, behind = (sent[-1].task, last_new_id(sent[-1].jobs)) if sent else (None, "")
        if before is not None and not behind:
            await asyncio.wait([before])  # the server has no proof that it was stored
        call = self._engine.enqueue(page, behind)
        task = asyncio.ensure_future(self._engine.script_client.together(call, after=before))
        sent.append(_SentPage(page, call, task))


class _SentPage(NamedTuple):
    """A page on its way."""

    jobs: list[NewJob]
    call: ScriptCall[list[EnqueueAnswer]]
    task: "asyncio.Task[list[Any]]"  #: of its raw answer

    async def read(self, *, raises: bool) -> list[EnqueueAnswer]:
        return _checked_page(self.call.decode((await self.task)[0]), self.jobs, raises=raises)


async def _settle(tasks: "list[asyncio.Task[list[Any]]]") -> None:
    """Await the pages still on their way when the iterable of jobs raised or a page was refused."""
    if tasks:
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()


def _checked_page(answers: list[EnqueueAnswer], jobs: Sequence[NewJob], *, raises: bool) -> list[EnqueueAnswer]:
    if raises:
        for answer, job in zip(answers, jobs, strict=True):
            if answer.word == "full":
                raise queue_full(job.header.queue)
    return answers


@dataclass(eq=False, slots=True)
class _InFlight:
    """A call on its way: its jobs, when it began, and its task. One that a caller sends itself has no task."""

    jobs: Sequence[_Waiting]
    begun: float
    task: "asyncio.Task[None] | None" = None

    def last_new_id(self) -> str:
        return last_new_id([job for job, _, _ in self.jobs])


def last_new_id(jobs: Sequence[NewJob]) -> str:
    """The id that tells whether this page is stored: the last generated one. A caller's own id may be an earlier job's.

    Empty if the page has no generated id: then the server has no proof that it was stored.
    """
    return next((job.id for job in reversed(jobs) if not job.header.nonce), "")


class SendBuffer:
    """Jobs of one event loop that wait to be sent, in their order.

    At most two calls are on their way, on one connection, and the second says which job must be there before it: so
    they arrive in their order. Jobs that wait meanwhile travel together. Callers wait for their answers, so the buffer
    never holds more jobs than there are callers.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self._engine = engine
        self._loop = loop
        self._deadline = deadline
        self._waiting: list[_Waiting] = []  #: empty while no call is in flight
        self._in_flight: list[_InFlight] = []  #: calls that the waiting jobs are behind
        self._calls: dict[asyncio.Task[None], _InFlight] = {}  #: by task, overtaken ones too; oldest first
        self._last_page_jobs = 1
        self._overtake_timer: asyncio.TimerHandle | None = None  #: runs while a job waits
        self._deadline_timer: asyncio.TimerHandle | None = None  #: for the oldest job's deadline

    def enqueue(self, job: NewJob) -> Awaitable[EnqueueAnswer]:
        if not self._in_flight:
            return self._send_alone(job)
        answer: asyncio.Future[EnqueueAnswer] = self._loop.create_future()
        due = self._loop.time() + self._deadline + DEADLINE_SLACK
        self._waiting.append((job, answer, due))
        if self._deadline_timer is None:
            self._deadline_timer = self._loop.call_at(due, self._fail_late)
        if len(self._waiting) == 1:
            self._restart_overtake_timer()
            self._loop.call_soon(self._send_waiting)  # when all jobs of this moment have been added
        return answer

    async def _send_alone(self, job: NewJob) -> EnqueueAnswer:
        """Send a job in its caller's own task: another one would take more turns of the loop."""
        call = _InFlight((), 0.0)
        self._in_flight.append(call)
        self._last_page_jobs = 1
        try:
            return checked((await self._engine.enqueue([job]))[0], job.header.queue)
        finally:
            self._answered(call)

    def _answered(self, call: _InFlight) -> None:
        """Send what waits behind this call, unless it was overtaken."""
        if call in self._in_flight:
            self._in_flight.remove(call)
            self._send_waiting()

    def _send_waiting(self) -> None:
        self._drop_cancelled()
        while self._waiting and self._may_send() and not self._loop.is_closed():
            self._send_page()

    def _may_send(self) -> bool:
        """Whether another call may be sent now, behind those in flight.

        Not behind a call that is late or sent again: the page would wait, and could not overtake it on another
        connection. Not behind a call that its caller sends itself: its task may never end. And not behind a call with
        only caller-chosen ids, which gives no proof that it was stored.
        """
        if not self._in_flight:
            return True
        before = self._in_flight[-1]
        return (
            len(self._in_flight) < MAX_IN_FLIGHT
            and before.task is not None
            and before.last_new_id() != ""
            and not self._engine.script_client.is_retrying(before.task, before.begun)
        )

    def _send_page(self) -> None:
        jobs = self._take_page()
        call, before = _InFlight(jobs, self._loop.time()), self._in_flight[-1] if self._in_flight else None
        call.task = self._loop.create_task(self._send(call, before))
        call.task.add_done_callback(self._task_done)
        self._calls[call.task] = call
        self._in_flight.append(call)
        self._last_page_jobs = len(jobs)
        self._restart_overtake_timer()

    def _take_page(self) -> list[_Waiting]:
        page: list[_Waiting] = []
        size = 0
        for waiting in self._waiting[: self._page_jobs()]:
            size += len(waiting[0].payload)
            if page and size > MAX_PAGE_BYTES:
                break
            page.append(waiting)
        del self._waiting[: len(page)]
        return page

    def _page_jobs(self) -> int:
        """How many jobs the next page takes at most.

        Callers that wait for the same answer send their next jobs at the same moment. Half of these go first: while the
        server has them, the other half prepares its jobs, and from then on they take turns.
        """
        waiting = len(self._waiting)
        return min(PAGE, -(-waiting // 2) if waiting > 2 * self._last_page_jobs else waiting)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._answered(self._calls.pop(task))

    async def _send(self, call: _InFlight, before: _InFlight | None) -> None:
        futures = [future for _, future, _ in call.jobs]
        try:
            script_call = self._engine.enqueue([job for job, _, _ in call.jobs], before.last_new_id() if before else "")
            answers = await self._engine.script_client.run(script_call, after=before.task if before else None)
            self._answered(call)  # before the callers continue: the server need not wait for them
        except PenstockError as error:
            _fail(futures, error)
        except asyncio.CancelledError:
            _fail(futures, Unavailable("the event loop ended before the job was sent"))
            raise
        except Exception as error:  # noqa: BLE001  (the callers must get it, whatever it is)
            _fail(futures, PenstockError(f"the jobs could not be sent: {error!r}"))
        else:
            for (job, future, _), answer in zip(call.jobs, answers, strict=True):
                if answer.word == "full":
                    _fail([future], queue_full(job.header.queue))
                elif not future.done():
                    future.set_result(answer)

    # Calls that take too long

    def _restart_overtake_timer(self) -> None:
        if self._overtake_timer is not None:
            self._overtake_timer.cancel()
        due = self._loop.time() + OVERTAKE_TIMEOUT
        self._overtake_timer = self._loop.call_at(due, self._overtake, due) if self._waiting else None

    def _overtake(self, due: float) -> None:
        """Send the waiting jobs on another connection, if a server is found.

        If this timer fires late, the loop was blocked, and the answers may be there already.
        """
        self._drop_cancelled()
        is_on_time = self._loop.time() - due < OVERTAKE_TIMEOUT / 5
        if (
            is_on_time
            and self._waiting
            and self._engine.script_client.endpoint.is_open
            and len(self._calls) < MAX_WITH_OVERTAKEN
        ):
            self._in_flight.clear()
            self._send_waiting()
        self._restart_overtake_timer()

    def _fail_late(self) -> None:
        """Fail the jobs past their deadline, and set the one timer to the oldest of the others."""
        now, self._deadline_timer = self._loop.time(), None
        for _, answer, due in chain(*(call.jobs for call in self._calls.values()), self._waiting):
            if due > now and not answer.done():
                self._deadline_timer = self._loop.call_at(due, self._fail_late)
                break
            _fail([answer], self._late_error())
        self._drop_cancelled()

    def _late_error(self) -> Unavailable:
        return Unavailable(
            f"{self._engine.script_client.endpoint} did not take the job within {self._deadline:g} s; "
            "sending again with the same id is safe"
        )

    def _drop_cancelled(self) -> None:
        """Drop the first waiting jobs whose callers are gone: all of them if the loop ends and no task could run."""
        gone = 0
        while gone < len(self._waiting) and self._waiting[gone][1].done():
            gone += 1
        if gone:
            del self._waiting[:gone]
            if not self._waiting:
                self._restart_overtake_timer()


def _fail(futures: "Sequence[asyncio.Future[EnqueueAnswer]]", error: PenstockError) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(
                type(error)(*error.args)
            )  # a copy each, because raising an error adds to its traceback
