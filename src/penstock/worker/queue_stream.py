"""The observable queue: jobs taken by hand, with back-pressure, renewed meanwhile, given back on leaving."""

import asyncio
import json
import logging
import os
import random
import secrets
import socket
import time
from collections import deque
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self

from penstock.api.context import JobContext, enter, leave
from penstock.api.program import Program
from penstock.engine.answers import Lease, Leased
from penstock.engine.engine import PAGE
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.engine.transport.subscriber import WORKER_PING_AFTER, Subscriber
from penstock.errors import BadOption, PenstockError, StaleLease
from penstock.model import backoff
from penstock.model.backoff import Backoff
from penstock.model.codec import Envelope, encode_result, open_envelope
from penstock.model.control_flow import ControlFlow
from penstock.worker.fetch import LOOK, RECHECK, CallNumbers
from penstock.worker.heartbeat import OwnHeartbeat
from penstock.worker.job_log import JobLog, captured
from penstock.worker.lease_check import Hand, LeaseCheck
from penstock.worker.outcome import Buried, Completed, Outcome, Policy, Released, describe, judge
from penstock.worker.settle import SettledRun
from penstock.worker.settle_retry import SettleRetry
from penstock.worker.worker import about, soon

log = logging.getLogger("penstock.worker")

MOST: Final = 1000  #: jobs that one stream may hold


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
        await self._settle(judge(self._lease, error, self._stream.policy(self._lease)))

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
                self._hand_over(Released())
            return False
        await self._settle(self._outcome(error))
        return isinstance(error, ControlFlow)

    def _outcome(self, error: Exception | None) -> Outcome:
        try:
            if error is not None:
                return judge(self._lease, error, self._stream.policy(self._lease))
            return Completed(encode_result(self.result))
        except Exception as broken:  # noqa: BLE001  (whatever the result or the job's payload is, the job is settled)
            return Buried("result_not_storable" if error is None else "worker_error", describe(broken))

    async def _settle(self, outcome: Outcome) -> None:
        """Hand the outcome to the stream, and wait until the server has answered; whoever waits may be cancelled."""
        settling = self._hand_over(outcome)
        await asyncio.wait([settling])
        if settling.result() == "stale":
            raise StaleLease(f"job {self.id} is no longer held by this stream: its lease was lost")

    def _hand_over(self, outcome: Outcome) -> "asyncio.Task[str]":
        if self._settling is not None:
            raise StaleLease(f"job {self.id} is no longer held by this stream: it was settled, or is being settled")
        self._settling = self._stream.settle(self, SettledRun(self._worker, self._number, self.id, outcome))
        return self._settling


class QueueStream:
    """Jobs of one queue, at most `limit` unsettled at a time: `async with` it, then `async for` its leases."""

    def __init__(self, program: Program, queue: str, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST:
            raise BadOption(f"limit={limit!r}: use a number from 1 to {MOST:,}")
        self._program = program
        self._queue = queue
        self._limit = limit
        self._name = ""
        self._numbers = CallNumbers()
        self._taken: deque[QueueLease] = deque()  #: not given to anybody yet
        self._unsettled: dict[str, QueueLease] = {}
        self._wake = asyncio.Event()  #: there may be work, or room
        self._arrived = asyncio.Event()  #: there is a lease to give, or the end
        self._stack = AsyncExitStack()
        self._mail: asyncio.Task[None] | None = None
        self._open = False

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._arrived.set()
        await self._stack.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> QueueLease:
        """The next job; it waits until there is one."""
        if self._mail is None:
            raise PenstockError("enter the stream first: async with queue.stream(limit=10) as leases: …")
        while True:
            if not self._taken:
                if not self._open:
                    raise StopAsyncIteration
                self._arrived.clear()
                await self._arrived.wait()
            elif time.monotonic() < self._heartbeat.valid_until:
                return self._taken.popleft()
            else:
                await asyncio.sleep(RECHECK)  # the job may be another's by now: the next renewal tells

    def settle(self, lease: QueueLease, settled: SettledRun) -> "asyncio.Task[str]":
        """Settle it, whatever becomes of its handler, and then make room for another; the task has the answer."""
        if self._unsettled.get(lease.id) is not lease:
            raise StaleLease(f"job {lease.id} is no longer held by this stream: it was settled, or given back")
        task = self._settling.begin(settled)
        task.add_done_callback(lambda _: self._settled(lease))
        return task

    def _settled(self, lease: QueueLease) -> None:
        if self._unsettled.get(lease.id) is lease:  # else its lease was lost, and the job may have come again
            del self._unsettled[lease.id]
            self._wake.set()

    def policy(self, lease: Lease) -> Policy:
        """What decides about another try: as its task says, or as for a task that says nothing."""
        task = self._program.tasks.get(lease.ready.task)
        envelope = _envelope(lease)
        retry_on, give_up_on = (task.options.retry_on, task.options.give_up_on) if task else (None, ())
        default = task.options.backoff if task else Backoff()
        return Policy(
            backoff.unpack(tuple(envelope.backoff)) if envelope and envelope.backoff else default,
            retry_on if envelope is None or envelope.retry_on is None else tuple(envelope.retry_on),
            give_up_on if envelope is None or envelope.give_up_on is None else tuple(envelope.give_up_on),
        )

    async def _start(self, stack: AsyncExitStack) -> None:
        self._engine = self._program.client().engine
        self._health = ConnectionHealth()
        self._life = self._program.settings.lease
        loop = asyncio.get_running_loop()
        self._heartbeat = OwnHeartbeat(
            self._engine,
            self._life,
            self._health,
            lost=lambda worker: soon(loop, self._lost, worker),
            cancelling=lambda job_id: soon(loop, self._cancel, job_id),
            moved=self._wake.set,
        )
        self._settling = SettleRetry(self._engine, self._health)
        self._check = LeaseCheck(self._engine, self._in_hand)
        self._lines = JobLog(self._engine)
        stack.enter_context(captured(self._program.settings.job_log))
        await self._begin()
        stack.push_async_callback(self._leave)
        loops = [*self._heartbeat.start(), self._fill(), self._check.run()]
        stack.callback(self._heartbeat.stop)
        stack.push_async_callback(self._settling.aclose)  # while its lease is still renewed
        tasks = [asyncio.create_task(one) for one in loops]
        stack.push_async_callback(self._end, tasks)
        self._open = True

    async def _begin(self) -> None:
        """An incarnation under a name that was never used."""
        name = f"stream-{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(5)}"
        info = about(self._program) | {"slots": self._limit, "tasks": []}
        valid_until = time.monotonic() + self._life / 1000
        await self._engine.register(name, self._life, json.dumps(info), [self._queue])
        self._name, self._numbers = name, CallNumbers()
        self._heartbeat.begin(name, info, [self._queue], valid_until)
        if self._mail is not None:
            self._mail.cancel()
        channels = [self._engine.keys.mailbox(self._name), *self._heartbeat.channels()]
        mailbox = Subscriber(
            self._engine.script_client,
            channels,
            on_message=self._letter,
            on_connect=self._look,
            on_lasting_error=self._unheard,
            health=self._health,
            ping_after=WORKER_PING_AFTER,
        )
        self._mail = asyncio.create_task(mailbox.run())

    async def _end(self, tasks: "list[asyncio.Task[None]]") -> None:
        tasks += [self._mail] if self._mail else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _leave(self) -> None:
        """Whatever was not settled goes back at once; what is being settled was waited for."""
        self._taken.clear()
        self._unsettled.clear()
        try:
            await self._lines.aclose()
        finally:
            with suppress(PenstockError):  # what cannot be said is seen when the lease has run out
                await self._heartbeat.gone(self._name)

    async def _fill(self) -> None:
        """Take as many as there is room for, and go on when there is room again or word of work."""
        pause = 0.05
        while True:
            self._wake.clear()
            room = self._limit - len(self._unsettled)
            try:
                more = room > 0 and await self._take(room)
                self._health.succeeded("stream")
                pause = 0.05
            except PenstockError as error:
                self._health.failed("stream", error)
                pause = min(pause * 2, 2.0)
                await self._health.pause("stream", pause)
                more = True
            if not more:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.uniform(LOOK * 0.8, LOOK)):  # noqa: S311  (jitter)
                        await self._wake.wait()

    async def _take(self, room: int) -> bool:
        """Lease up to that many; whether there may be more."""
        worker, number, numbers = self._name, self._numbers.take(), self._numbers
        call = self._engine.lease(worker, number, queues=[self._queue], want=room, answered=numbers.floor)
        try:
            leased = await call
        except BaseException:
            numbers.give_back(number)
            raise
        numbers.answered(number)
        if leased.word == "unknown":
            self._lost(worker)
            await self._begin()
            return True
        self._hand_out(leased, worker, number)
        return leased.again or len(leased.leases) == PAGE

    def _hand_out(self, leased: Leased, worker: str, number: int) -> None:
        for lease in leased.leases:
            context = JobContext(lease, worker, number, self._engine, None, self._lines)
            context.cancelling = bool(lease.ready.cancelling)
            envelope = _envelope(lease)
            context.tags = tuple(envelope.tags) if envelope else ()
            found = QueueLease(self, lease, worker, number, context)
            self._unsettled[lease.id] = found
            self._taken.append(found)
        for job_id in leased.unreadable:
            self._settling.begin(SettledRun(worker, number, job_id, Buried("unreadable_header", "{}")))
        if leased.leases:
            self._arrived.set()

    def _in_hand(self) -> Hand:
        """What is not settled yet, until the server has answered the settle: what is not in hand is given back."""
        claims = (held.job.claim for held in self._unsettled.values())
        jobs = ((job_id, number) for worker, job_id, number in claims if worker == self._name)
        return Hand.of(self._name, self._numbers.last, self._numbers.unanswered, jobs)

    def _lost(self, worker: str) -> None:
        """The engine knows it no longer: what it held is others' by now."""
        if worker == self._name:
            log.warning("stream %s was taken for dead; it goes on under a new name", worker)
            self._taken.clear()
            self._unsettled.clear()
            self._wake.set()

    def _cancel(self, job_id: str) -> None:
        if (found := self._unsettled.get(job_id)) is not None:
            found.job.cancelling = True

    def _letter(self, channel: str, text: bytes) -> None:
        if channel != self._engine.keys.mailbox(self._name):
            self._heartbeat.letter(channel, text)
        elif text == b"work":
            self._wake.set()
        elif text.startswith(b"cancel "):
            self._cancel(text.decode().removeprefix("cancel "))

    def _unheard(self, _: PenstockError) -> None:
        """It may not listen: with each try to, it looks by itself for what it would be told."""
        self._wake.set()
        self._heartbeat.rearm()

    async def _look(self) -> None:
        self._wake.set()
        self._check.soon()
        self._heartbeat.rearm()
        for _, job_id in (await self._engine.renew(self._life, [self._name])).cancelling:
            self._cancel(job_id)


def _envelope(lease: Lease) -> Envelope | None:
    try:
        return open_envelope(lease.payload)
    except Exception:  # noqa: BLE001  (whatever is stored there, the job can still be taken by hand)
        return None
