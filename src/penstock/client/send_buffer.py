"""The jobs of one event loop that wait to be sent: what is enqueued while calls are on their way travels together."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from penstock.engine.answers import EnqueueAnswer, checked, queue_full
from penstock.engine.engine import PAGE, Engine, NewJob
from penstock.errors import PenstockError, Unavailable
from penstock.server.connection import SLOW

BYTES: Final = 4 * 2**20  #: of payload in one call
AHEAD: Final = 2  #: calls that are on their way at once, one behind the other
SLACK: Final = 0.1  #: seconds beyond the deadline, for the error of the call itself: it knows why
PATIENCE: Final = 0.5  #: seconds that a call keeps the next ones waiting: its connection may be dead
IN_FLIGHT: Final = 4  #: calls on their way when none is overtaken any more

#: a job, its answer, and when it must have been given
_Waiting = tuple[NewJob, "asyncio.Future[EnqueueAnswer]", float]


@dataclass(eq=False, slots=True)
class _InFlight:
    """A call on its way: its jobs, when it began, and its task. One that a caller sends by itself has no task."""

    page: Sequence[_Waiting]
    begun: float
    task: "asyncio.Task[None] | None" = None

    def mark(self) -> str:
        return last_new_id([job for job, _, _ in self.page])


def last_new_id(page: Sequence[NewJob]) -> str:
    """The id that tells whether it is stored: the last that the program did not give, as that may be an earlier one."""
    return next((job.id for job in reversed(page) if not job.header.nonce), "")


class SendBuffer:
    """Jobs of one event loop that wait to be sent, in their order.

    Two calls at most are on their way, on one connection, and the second says which job must be there before it: so
    they arrive in their order. What waits meanwhile travels together. Who enqueues waits for the answer, and so there
    are never more jobs here than callers.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self._engine = engine
        self._loop = loop
        self._deadline = deadline
        self._waiting: list[_Waiting] = []
        self._ahead: list[_InFlight] = []  #: on their way, in front of all that wait; nothing waits while there is none
        self._last = 1  #: jobs in the call before
        self._sending: dict[asyncio.Task[None], _InFlight] = {}  #: also those that were overtaken; oldest first
        self._patience: asyncio.TimerHandle | None = None  #: runs while something waits
        self._alarm: asyncio.TimerHandle | None = None  #: for when the oldest must have been answered

    def enqueue(self, job: NewJob) -> Awaitable[EnqueueAnswer]:
        if not self._ahead:
            return self._send_alone(job)
        answer: asyncio.Future[EnqueueAnswer] = self._loop.create_future()
        until = self._loop.time() + self._deadline + SLACK
        self._waiting.append((job, answer, until))
        if self._alarm is None:
            self._alarm = self._loop.call_at(until, self._refuse_late)
        if len(self._waiting) == 1:
            self._be_patient()
            self._loop.call_soon(self._start)  # when all of this moment are there
        return answer

    async def _send_alone(self, job: NewJob) -> EnqueueAnswer:
        """By the caller itself: a task for it would take more turns of the loop."""
        alone = _InFlight((), 0.0)
        self._ahead.append(alone)
        self._last = 1
        try:
            return checked((await self._engine.enqueue([job]))[0], job.header.queue)
        finally:
            self._ended(alone)

    def _ended(self, call: _InFlight) -> None:
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
        """Whether there is room on the way, behind a call that goes well.

        Behind one in trouble, or late, it would wait, and could not be overtaken by another connection. One that a
        caller sends by itself cannot be waited for: its task may never end. Of one with ids of the program's alone the
        server cannot tell whether it was there.
        """
        if not self._ahead:
            return True
        before = self._ahead[-1]
        return (
            len(self._ahead) < AHEAD
            and before.task is not None
            and before.mark() != ""
            and not self._engine.script_client.is_troubled(before.task)
            and self._loop.time() - before.begun < SLOW
        )

    def _start_page(self) -> None:
        page: list[_Waiting] = []
        size = 0
        for one in self._waiting[: self._most()]:
            size += len(one[0].payload)
            if page and size > BYTES:
                break
            page.append(one)
        del self._waiting[: len(page)]
        sent, before = _InFlight(page, self._loop.time()), self._ahead[-1] if self._ahead else None
        sent.task = self._loop.create_task(self._send(sent, before))
        sent.task.add_done_callback(self._sent)
        self._sending[sent.task] = sent
        self._ahead.append(sent)
        self._last = len(page)
        self._be_patient()

    def _most(self) -> int:
        """Those that all wait for the same answer send their next jobs at the same moment.

        Half of these go first: while the server has them, the other half gets its jobs ready, from then on in turns.
        """
        waiting = len(self._waiting)
        return min(PAGE, -(-waiting // 2) if waiting > 2 * self._last else waiting)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._ended(self._sending.pop(task))

    async def _send(self, sent: _InFlight, before: _InFlight | None) -> None:
        answers = [answer for _, answer, _ in sent.page]
        try:
            call = self._engine.enqueue([job for job, _, _ in sent.page], before.mark() if before else "")
            placed = await self._engine.script_client.run(call, after=before.task if before else None)
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

    # What takes too long

    def _be_patient(self) -> None:
        """Wait for the calls on their way from now on, but not for ever."""
        if self._patience is not None:
            self._patience.cancel()
        due = self._loop.time() + PATIENCE
        self._patience = self._loop.call_at(due, self._overtake, due) if self._waiting else None

    def _overtake(self, due: float) -> None:
        """Those that wait go by another connection.

        Not while none can be had, as no server is found yet. If this comes late, it was the loop that was held up, and
        the answers may be there.
        """
        self._forget_cancelled()
        is_punctual = self._loop.time() - due < PATIENCE / 5
        if (
            is_punctual
            and self._waiting
            and self._engine.script_client.endpoint.is_open
            and len(self._sending) < IN_FLIGHT
        ):
            self._ahead.clear()
            self._start()
        self._be_patient()

    def _refuse_late(self) -> None:
        """One timer for all: it goes off when the oldest must have been answered, then for the oldest that is not."""
        now, self._alarm = self._loop.time(), None
        for _, answer, until in chain(*(sent.page for sent in self._sending.values()), self._waiting):
            if until > now and not answer.done():
                self._alarm = self._loop.call_at(until, self._refuse_late)
                break
            _refuse([answer], self._late())
        self._forget_cancelled()

    def _late(self) -> Unavailable:
        return Unavailable(
            f"{self._engine.script_client.endpoint} did not take the job within {self._deadline:g} s; "
            "sending again with the same id is safe"
        )

    def _forget_cancelled(self) -> None:
        """Those in front whose callers are gone. When the loop ends all of them are: no task would be waited for."""
        gone = 0
        while gone < len(self._waiting) and self._waiting[gone][1].done():
            gone += 1
        if gone:
            del self._waiting[:gone]
            if not self._waiting:
                self._be_patient()


def _refuse(answers: "Sequence[asyncio.Future[EnqueueAnswer]]", error: PenstockError) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(type(error)(*error.args))  # one each: who raises it adds its traceback
