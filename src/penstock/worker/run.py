"""Running one job: find its task, decode, call under a time limit, and say how it ended."""

import asyncio
import contextvars
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from penstock.api.context import JobContext, Sink, enter
from penstock.api.program import Program
from penstock.api.task import Task
from penstock.engine.answers import Lease
from penstock.engine.engine import Engine
from penstock.errors import BadArguments, PayloadTooLarge, PenstockError
from penstock.model import backoff
from penstock.model.codec import Envelope, decode_any, encode_result, open_envelope
from penstock.model.durations import show
from penstock.worker.executors.processes import Processes
from penstock.worker.executors.threads import Threads, Work
from penstock.worker.outcome import (
    AGAIN,
    Buried,
    Completed,
    NotFound,
    NotStarted,
    Outcome,
    Policy,
    Released,
    Snoozed,
    describe,
    judge,
)
from penstock.worker.settle import SettledRun
from penstock.worker.supervisor.shared_state import SharedState
from penstock.worker.unknown_tasks import UnknownTasks

log = logging.getLogger("penstock.worker")

CRASHES = 2  #: that make a job a suspect
SUSPECTS = 16  #: at once; each has a process of its own, and when memory runs out the innocent are killed, too
OVERRUN = 5.0  #: seconds that a thread gets to end by itself once its job's time is over


class RunningJob(msgspec.Struct, eq=False):
    """A job that is running here, and how to stop it."""

    lease: Lease
    worker: str
    number: int
    context: JobContext
    task: "asyncio.Task[None] | None" = None
    note: int = -1  #: the mark that says that it has started
    is_apart: bool = False  #: a suspect in a process of its own: it has no part in what becomes of this one
    begun: bool = False
    stopped: bool = False  #: it was cancelled from outside, so its CancelledError is ours

    def stop(self) -> None:
        """Cancel it where it awaits, once; a thread can only see the flag, and one that has not begun will not."""
        if not self.stopped:
            self.stopped = True
            if self.begun and self.task is not None:
                self.task.cancel()


class Runner:
    """Runs leases as the app's program says."""

    def __init__(
        self,
        program: Program,
        engine: Engine,
        threads: Threads,
        processes: Processes,
        unknown: UnknownTasks,
        state: Any,
        notes: SharedState | None = None,
    ) -> None:
        self._program = program
        self._engine = engine
        self._threads = threads
        self._processes = processes
        self._unknown = unknown
        self._state = state
        self._notes = notes
        self.overrun: Callable[[str, Outcome], None] = lambda _id, _outcome: None  #: told of threads that do not end
        self.is_held: Callable[[RunningJob], Awaitable[bool]] = _always  #: whether a job that has not begun may begin
        self.sink: Sink | None = None  #: who keeps the lines that jobs write
        self._plans: dict[str, Plan] = {}
        self._suspects = 0

    def context(self, lease: Lease, worker: str, number: int) -> JobContext:
        return JobContext(lease, worker, number, self._engine, self._state, self.sink)

    def settled(self, runs: list[SettledRun]) -> None:
        """The server knows how these ended: from now on they are not charged with a death of this process."""
        if self._notes is not None:
            for run in runs:
                self._notes.end(run.note)

    async def run(self, running: RunningJob) -> Outcome:
        """Whatever the task does, this ends in an outcome."""
        lease = running.lease
        task = self._program.tasks.get(lease.ready.task)
        if task is None:
            return await self._unknown.outcome(lease)
        try:
            envelope = open_envelope(lease.payload)
            args, kwargs = task.signature.decode(envelope.args, envelope.status)
        except (msgspec.MsgspecError, BadArguments) as error:
            return Buried("undecodable", describe(error))
        if envelope.tags:
            running.context.tags = tuple(envelope.tags)
        enter(running.context)
        try:
            return await self._call(running, task, envelope, args, kwargs)
        except asyncio.CancelledError as error:
            # Ours if we stopped it; else the task raised it by itself, and that is a failure like any other.
            return Released() if running.stopped else judge(lease, error, policy_of(task, envelope))
        except BaseException as error:  # noqa: BLE001  (SystemExit and KeyboardInterrupt of a job end that job alone)
            return judge(lease, error, policy_of(task, envelope))
        finally:
            if running.context.unsent:
                await running.context.flush()

    async def _call(
        self,
        running: RunningJob,
        task: Task[..., Any, Any],
        envelope: Envelope,
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> Outcome:
        suspect, process = running.lease.ready.crashes >= CRASHES, task.options.executor == "process"
        counts = suspect and not process
        if counts and self._suspects >= SUSPECTS:
            return Snoozed(AGAIN, "suspect")
        self._suspects += counts
        timeout = task.options.timeout if envelope.timeout < 0 else envelope.timeout
        try:
            if suspect or process:
                return _result(await self._plan(task, suspect=suspect)(running, args, kwargs))
            call = self._plans.get(task.name) or self._plan(task)
            self._started(running, timeout)
            if timeout:
                async with _limited(timeout):
                    value = await call(running, args, kwargs)
            else:
                value = await call(running, args, kwargs)
            return _result(value)
        finally:
            self._suspects -= counts
            if self._notes is not None:
                self._notes.ran(running.note, apart=running.is_apart)

    def _started(self, running: RunningJob, milliseconds: int) -> None:
        if self._notes is not None and running.note < 0:
            running.note = self._notes.begin(running.lease.id, milliseconds / 1000, apart=running.is_apart)

    def _plan(self, task: Task[..., Any, Any], *, suspect: bool = False) -> "Plan":
        """How this task is called: on the loop, in a thread or in a process, within its middleware."""
        call: Plan
        if task.is_async:
            call = _on_loop(task.function)
        elif task.options.executor == "async":
            call = _at_once(task.function)
        else:
            call = _in_thread(task.function, self._threads, self._stuck)
        if suspect or task.options.executor == "process":
            call = self._in_process(task, call, suspect=suspect)
        for middleware in reversed(self._program.middlewares):
            call = _wrapped(middleware, call)
        if not suspect:
            self._plans[task.name] = call
        return call

    def _in_process(self, task: Task[..., Any, Any], here: "Plan", *, suspect: bool) -> "Plan":
        """Its time begins with its process. A suspect that no other process can import runs here all the same."""

        async def call(running: RunningJob, args: list[Any], kwargs: dict[str, Any]) -> Any:
            own = open_envelope(running.lease.payload).timeout
            timeout = task.options.timeout if own < 0 else own
            process = await self._processes.take(waits=task.options.executor == "process")
            try:
                if not await self.is_held(running):
                    raise NotStarted("its lease was lost before its process was there")
                running.is_apart = suspect
                self._started(running, timeout)
                async with _limited(timeout):
                    packed = await process.run(task, running.context)
            except NotFound as error:
                if task.options.executor == "process":
                    raise error.__cause__ or error from None
                packed = None
            finally:
                await self._processes.give_back(process)
                self._is_here(running)
            if packed is not None:
                return _decoded(task, packed)
            running.is_apart = False
            async with _limited(timeout):
                return await here(running, args, kwargs)

        return call

    def _is_here(self, running: RunningJob) -> None:
        """What it returned is handled in this process."""
        if self._notes is not None:
            self._notes.move_here(running.note)

    def _stuck(self, context: JobContext) -> None:
        """A thread ran on although its time is over: how its job ends, once its process has."""
        task, envelope = self._program.tasks[context.task], open_envelope(context.lease.payload)
        error = TimeoutError("it ran longer than its timeout, and its thread did not stop")
        self.overrun(context.id, judge(context.lease, error, policy_of(task, envelope)))


async def _always(_running: RunningJob) -> bool:
    return True


def _result(value: Any) -> Outcome:
    try:
        return Completed(encode_result(value))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError, PayloadTooLarge) as error:
        return Buried("result_not_storable", describe(error))


def _decoded(task: Task[..., Any, Any], packed: bytes) -> Any:
    """What a process returned; as plain data if that is not what the annotation says, which nobody checks elsewhere."""
    try:
        return task.signature.decode_result(packed)
    except PenstockError:
        return decode_any(packed)


def policy_of(task: Task[..., Any, Any], envelope: Envelope) -> Policy:
    """What its task says, unless the job says otherwise."""
    options = task.options
    return Policy(
        backoff.unpack(tuple(envelope.backoff)) if envelope.backoff else options.backoff,
        options.retry_on if envelope.retry_on is None else tuple(envelope.retry_on),
        options.give_up_on if envelope.give_up_on is None else tuple(envelope.give_up_on),
    )


@asynccontextmanager
async def _limited(milliseconds: int) -> AsyncIterator[None]:
    """A time limit, 0 for none, whose error says what happened and where it did."""
    try:
        async with asyncio.timeout(milliseconds / 1000 or None) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimeoutError(f"it ran longer than its timeout of {show(milliseconds)}") from error.__cause__


Plan = Callable[[RunningJob, list[Any], dict[str, Any]], Awaitable[Any]]


def _on_loop(function: Callable[..., Any]) -> Plan:
    def call(_running: RunningJob, args: list[Any], kwargs: dict[str, Any]) -> Awaitable[Any]:
        found: Awaitable[Any] = function(*args, **kwargs)
        return found

    return call


def _at_once(function: Callable[..., Any]) -> Plan:
    async def call(_running: RunningJob, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    return call


def _in_thread(function: Callable[..., Any], threads: Threads, stuck: Callable[[JobContext], None]) -> Plan:
    async def call(running: RunningJob, args: list[Any], kwargs: dict[str, Any]) -> Any:
        context = running.context
        work = threads.run(partial(contextvars.copy_context().run, _caught, function, args, kwargs))
        started = time.monotonic()
        try:
            value, error = await work.result()
        except asyncio.CancelledError:
            # A thread cannot be stopped. It is asked to (`current_job().cancelling`), and waited for, because it still
            # runs: its slot and its place must not be given to another.
            late = not context.cancelling and not context.shutting_down
            context.cancelling = True
            alarm = asyncio.get_running_loop().call_later(OVERRUN, stuck, context) if late else None
            try:
                await _patiently(work, threads)
            finally:
                if alarm is not None:
                    alarm.cancel()
            log.warning(
                "job %s was stopped, but ran on in its thread for %.1f s", context.id, time.monotonic() - started
            )
            raise
        if error is not None:
            raise error
        return value

    return call


async def _patiently(work: Work[Any], threads: Threads) -> None:
    """Until the thread is done, whatever is cancelled; once the worker has ended, its loop may end without it."""
    while True:
        try:
            await work.result()
        except asyncio.CancelledError:
            if threads.is_closed:
                raise
            continue
        return


def _caught(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """StopIteration and SystemExit do not travel well through futures; as values they do."""
    try:
        return function(*args, **kwargs), None
    except BaseException as error:  # noqa: BLE001  (raised again on the loop)
        return None, error


def _wrapped(middleware: Callable[..., Awaitable[Any]], call: Plan) -> Plan:
    async def wrapped(running: RunningJob, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return await middleware(running.context, lambda: call(running, args, kwargs))

    return wrapped
