"""Jobs of one queue taken by hand: with back-pressure, renewed meanwhile, given back when the stream closes."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self

from penstock.api.context import JobContext, enter, leave
from penstock.api.program import Program
from penstock.engine.answers import Lease, Leased
from penstock.engine.engine import PAGE
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.errors import BadOption, PenstockError, StaleLease
from penstock.model.codec import Envelope, encode_result, open_envelope
from penstock.model.control_flow import ControlFlow
from penstock.model.options import TaskOptions
from penstock.worker.fetch import IDLE_POLL_INTERVAL
from penstock.worker.job_log import JobLog, captured
from penstock.worker.outcome import (
    Buried,
    Completed,
    Outcome,
    Released,
    describe_error,
    hide_arguments,
    hide_nothing,
    outcome_of,
    retry_policy,
    sealed,
)
from penstock.worker.retry_pause import RetryPause
from penstock.worker.session import Session, about, cancel_all
from penstock.worker.settle import FinishedRun, StreamSettler
from penstock.worker.slots import LEASE_POLL_INTERVAL

log = logging.getLogger("penstock.worker")

MAX_LIMIT: Final = 1000  #: jobs that one stream may hold
DEFAULT_OPTIONS: Final = TaskOptions()  #: of a job whose task this program does not know


class QueueLease:
    """A job that was taken by hand: `async with lease as job: …` completes it, an exception fails it and goes on.

    `lease.result = value` is kept as its result. Retry, Snooze and Bury do what they do in a task. `complete`, `fail`
    and `release` do the same without a block.
    """

    def __init__(self, stream: "QueueStream", lease: Lease, worker: str, number: int, context: JobContext) -> None:
        self._stream = stream
        self._lease = lease
        self._worker = worker
        self._number = number
        self.job = context
        self.result: Any = None
        self._token: Any = None
        self._settling: asyncio.Task[str] | None = None  #: ends with the server's answer

    def __repr__(self) -> str:
        return f"<QueueLease {self.id} of {self.job.task}>"

    @property
    def id(self) -> str:
        return self._lease.id

    async def complete(self, result: Any = None) -> None:
        """It is done; StaleLease if it is no longer this stream's."""
        await self._settle(Completed(encode_result(result)))

    async def fail(self, error: BaseException) -> None:
        """The attempt failed: another follows, or it is buried, as its task says."""
        await self._settle(self._stream.outcome_of(self._lease, error))

    async def release(self) -> None:
        """Back to the head of its line; no attempt used."""
        await self._settle(Released())

    async def __aenter__(self) -> JobContext:
        self._token = enter(self.job)
        return self.job

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        with suppress(ValueError):  # entered in another task
            leave(self._token)
        if self._settling is not None:
            return False  # it was settled inside the block
        if error is not None and not isinstance(error, Exception):
            with suppress(StaleLease):  # cancelled, or the program ends: nobody waits for the answer
                self._start_settling(Released())
            return False
        await self._settle(self._outcome_of_block(error))
        return isinstance(error, ControlFlow)

    def _outcome_of_block(self, error: Exception | None) -> Outcome:
        try:
            if error is not None:
                return self._stream.outcome_of(self._lease, error)
            return Completed(encode_result(self.result))
        except Exception as broken:  # noqa: BLE001  (whatever the result or the job's payload is, the job is settled)
            return Buried("result_not_storable" if error is None else "worker_error", describe_error(broken))

    async def _settle(self, outcome: Outcome) -> None:
        """Wait until the server has answered; if the waiting handler is cancelled, the settle goes on."""
        settling = self._start_settling(outcome)
        await asyncio.wait([settling])
        if settling.result() == "stale":
            raise StaleLease(f"job {self.id} is no longer held by this stream: its lease was lost")

    def _start_settling(self, outcome: Outcome) -> "asyncio.Task[str]":
        if self._settling is not None:
            raise StaleLease(f"job {self.id} is no longer held by this stream: it was settled, or is being settled")
        outcome = self._stream.sealed(outcome, self._lease)
        self._settling = self._stream.settle(self, FinishedRun(self._worker, self._number, self.id, outcome))
        return self._settling


class QueueStream:
    """Jobs of one queue, at most `limit` unsettled at a time: `async with` it, then `async for` its leases."""

    def __init__(self, program: Program, queue: str, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
            raise BadOption(f"limit={limit!r}: use a number from 1 to {MAX_LIMIT:,}")
        self._program = program
        self._queue = queue
        self._limit = limit
        self._ready: deque[QueueLease] = deque()  #: leased, and not given to anybody yet
        self._unsettled: dict[str, QueueLease] = {}
        self._wake = asyncio.Event()  #: there may be work, or room
        self._changed = asyncio.Event()  #: there is a lease to give, or the end
        self._stack = AsyncExitStack()
        self._session: Session | None = None
        self._is_open = False

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        self._changed.set()
        await self._stack.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> QueueLease:
        """The next job; it waits until there is one."""
        if self._session is None:
            raise PenstockError("enter the stream first: async with queue.stream(limit=10) as leases: …")
        while True:
            if not self._ready:
                if not self._is_open:
                    raise StopAsyncIteration
                self._changed.clear()
                await self._changed.wait()
            elif time.monotonic() < self._session.heartbeat.valid_until:
                return self._ready.popleft()
            else:
                await asyncio.sleep(
                    LEASE_POLL_INTERVAL
                )  # another worker may have the job by now: wait for the next renewal

    # Settling

    def settle(self, lease: QueueLease, run: FinishedRun) -> "asyncio.Task[str]":
        """Settle it, whatever becomes of its handler, and then make room for another; the task has the answer."""
        if self._unsettled.get(lease.id) is not lease:
            raise StaleLease(f"job {lease.id} is no longer held by this stream: it was settled, or given back")
        task = self._settler.start(run)
        task.add_done_callback(lambda _: self._settled(lease))
        return task

    def _settled(self, lease: QueueLease) -> None:
        if self._unsettled.get(lease.id) is lease:  # else its lease was lost, and the job may have been leased again
            del self._unsettled[lease.id]
            self._wake.set()

    def outcome_of(self, lease: Lease, error: BaseException) -> Outcome:
        """As its task says, or as for a task that says nothing."""
        task, envelope = self._program.tasks.get(lease.ready.task), self._envelope(lease)
        options = task.options if task else DEFAULT_OPTIONS
        hide = hide_arguments(envelope, options.redact) if envelope else hide_nothing
        return outcome_of(lease, error, retry_policy(options, envelope), hide)

    def sealed(self, outcome: Outcome, lease: Lease) -> Outcome:
        """The outcome as it is stored."""
        return sealed(outcome, self._engine.codecs, lease) if self._engine.codecs else outcome

    def _envelope(self, lease: Lease) -> Envelope | None:
        try:
            return open_envelope(self._engine.codecs.open_payload(lease.payload, lease.ready.task, lease.id))
        except Exception:  # noqa: BLE001  (whatever is stored there, the job can still be taken by hand)
            return None

    # Start and end

    async def _start(self, stack: AsyncExitStack) -> None:
        self._engine = self._program.client().engine
        self._health = ConnectionHealth()
        self._settler = StreamSettler(self._engine, self._health)
        self._job_log = JobLog(self._engine)
        stack.enter_context(captured(self._program.settings.job_log))
        session = self._new_session()
        await session.open()
        self._session = session
        stack.push_async_callback(self._leave, session)
        loops = [*session.loops(), self._fill(session)]
        stack.callback(session.heartbeat.stop)
        stack.push_async_callback(self._settler.aclose)  # while its lease is still renewed
        stack.push_async_callback(session.unsubscribe)
        stack.push_async_callback(cancel_all, [asyncio.create_task(loop) for loop in loops])
        self._is_open = True

    def _new_session(self) -> Session:
        return Session(
            self._engine,
            self._health,
            kind="stream",
            lease=self._program.settings.lease,
            queues=[self._queue],
            about=about(self._program) | {"slots": self._limit, "tasks": []},
            held=self._held,
            on_work=self._wake.set,
            on_cancel=self._cancel,
            on_lost=self._forget_jobs,
        )

    async def _leave(self, session: Session) -> None:
        """Give back at once whatever was not settled; settles in flight were waited for."""
        self._forget_jobs()
        try:
            await self._job_log.aclose()
        finally:
            with suppress(PenstockError):  # without a server it is reaped when its lease is over
                await session.heartbeat.retire(session.registration.name)

    # Leasing

    async def _fill(self, session: Session) -> None:
        """Lease as many jobs as there is room for, whenever there is room again or a message of work."""
        retry = RetryPause(self._health, "stream")
        while True:
            self._wake.clear()
            try:
                more = await self._lease_some(session)
                retry.succeeded()
            except PenstockError as error:
                await retry.failed(error)
                more = True
            if not more:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.uniform(IDLE_POLL_INTERVAL * 0.8, IDLE_POLL_INTERVAL)):  # noqa: S311  (jitter)
                        await self._wake.wait()

    async def _lease_some(self, session: Session) -> bool:
        """Lease as many as there is room for; whether there may be more."""
        room, registration = self._limit - len(self._unsettled), session.registration
        if room <= 0 or registration.is_lost:
            return False
        name, number, answered = registration.name, registration.calls.take(), registration.calls.answered_up_to
        try:
            leased = await self._engine.lease(name, number, queues=[self._queue], want=room, answered=answered)
        except BaseException:
            registration.calls.give_back(number)
            raise
        registration.calls.mark_answered(number)
        if leased.word == "unknown":
            session.lose(name)
        elif (
            registration is session.registration and not registration.is_lost
        ):  # else its jobs belong to other workers now
            self._hold(leased, name, number)
        return leased.again or len(leased.leases) == PAGE

    def _hold(self, leased: Leased, worker: str, number: int) -> None:
        for lease in leased.leases:
            context = JobContext(lease, worker, number, self._engine, None, self._job_log)
            context.cancelling = bool(lease.ready.cancelling)
            queue_lease = QueueLease(self, lease, worker, number, context)
            self._unsettled[lease.id] = queue_lease
            self._ready.append(queue_lease)
        for job_id in leased.unreadable:
            self._settler.start(FinishedRun(worker, number, job_id, Buried("unreadable_header", "{}")))
        if leased.leases:
            self._changed.set()

    def _held(self) -> Iterator[tuple[str, int, str]]:
        """A job is held until the server has answered its settle, even while that is in flight."""
        for lease in self._unsettled.values():
            worker, job_id, number = lease.job.claim
            yield worker, number, job_id

    def _forget_jobs(self) -> None:
        self._ready.clear()
        self._unsettled.clear()
        self._wake.set()

    def _cancel(self, job_id: str) -> None:
        if (lease := self._unsettled.get(job_id)) is not None:
            lease.job.cancelling = True
