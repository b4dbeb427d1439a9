"""Running one job: find its task, decode its arguments, call it under a time limit, and make its outcome."""

import asyncio
import contextvars
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import msgspec

from penstock.api.context import JobContext, Sink, enter
from penstock.api.program import Program
from penstock.api.task import Task
from penstock.engine.answers import Lease
from penstock.engine.engine import Engine
from penstock.errors import BadArguments, PayloadTooLarge, PenstockError, UnknownKey
from penstock.model.codec import Envelope, decode_any, encode_result, open_envelope
from penstock.model.durations import show
from penstock.model.payload_codec import CannotOpen, has_sealed_arguments
from penstock.worker.executors.processes import Processes
from penstock.worker.executors.threads import Threads, Work
from penstock.worker.outcome import (
    NOT_STARTED_DELAY,
    Buried,
    Completed,
    NotFound,
    NotStarted,
    Outcome,
    Released,
    Snoozed,
    describe_error,
    hide_arguments,
    outcome_of,
    retry_policy,
)
from penstock.worker.settle import FinishedRun
from penstock.worker.supervisor.shared_state import SharedState
from penstock.worker.unknown_tasks import UnknownTasks

log = logging.getLogger("penstock.worker")

SUSPECT_CRASHES: Final = 2  #: crashes after which a job is a suspect, and runs in a process of its own
MAX_SUSPECTS: Final = 16  #: that run at once: when memory runs out, innocent jobs are killed with them
OVERRUN_TIMEOUT: Final = 5.0  #: seconds that a thread gets to end by itself once its job's time is over


class RunningJob(msgspec.Struct, eq=False):
    """A job that is running here, and how to stop it."""

    lease: Lease
    worker: str
    number: int  #: of the lease call
    context: JobContext
    task: "asyncio.Task[None] | None" = None
    shared_slot: int = -1  #: the slot in the shared state that says that it has started
    is_apart: bool = False  #: a suspect in a process of its own, which is not to blame if this process dies
    has_begun: bool = False
    is_stopped: bool = False  #: it was cancelled from outside, so its CancelledError is ours

    def stop(self) -> None:
        """Cancel it where it awaits, once. A thread only sees the flag; a job that has not begun never begins."""
        if not self.is_stopped:
            self.is_stopped = True
            if self.has_begun and self.task is not None:
                self.task.cancel()


class Runner:
    """Runs leased jobs as the app's program says."""

    def __init__(
        self,
        program: Program,
        engine: Engine,
        threads: Threads,
        processes: Processes,
        unknown_tasks: UnknownTasks,
        lifespan_state: Any,
        shared_state: SharedState | None = None,
    ) -> None:
        self._program = program
        self._engine = engine
        self._threads = threads
        self._processes = processes
        self._unknown_tasks = unknown_tasks
        self._lifespan_state = lifespan_state
        self._shared_state = shared_state
        self.on_overrun: Callable[[str, Outcome], None] = lambda _id, _outcome: None  #: called if a thread does not end
        self.is_held: Callable[[RunningJob], Awaitable[bool]] = _always  #: whether a job that has not begun may begin
        self.sink: Sink | None = None  #: keeps the lines that jobs write
        self._calls: dict[str, TaskCall] = {}
        self._suspects = 0

    def context(self, lease: Lease, worker: str, number: int) -> JobContext:
        return JobContext(lease, worker, number, self._engine, self._lifespan_state, self.sink)

    def settled(self, runs: list[FinishedRun]) -> None:
        """The server knows how these runs ended, so they are no longer charged if this process dies."""
        if self._shared_state is not None:
            for run in runs:
                self._shared_state.clear(run.shared_slot)

    async def run(self, running: RunningJob) -> Outcome:
        """Run the job to an outcome, whatever its task does."""
        lease = running.lease
        task = self._program.tasks.get(lease.ready.task)
        if task is None:
            return await self._unknown_tasks.outcome(lease)
        try:
            if has_sealed_arguments(lease.payload) or self._engine.codecs.refuses_plain:
                envelope = self._engine.codecs.open_envelope(lease.payload, task.name, lease.id)
            else:
                envelope = open_envelope(lease.payload)
            args, kwargs = task.signature.decode(envelope.args, envelope.status)
        except UnknownKey as error:
            return await self._unknown_tasks.without_key(lease, error.key)
        except (msgspec.MsgspecError, BadArguments, CannotOpen) as error:
            return Buried("undecodable", describe_error(error))
        enter(running.context)
        try:
            return await self._call(running, task, envelope, args, kwargs)
        except BaseException as error:  # noqa: BLE001  (SystemExit and KeyboardInterrupt of a job end that job alone)
            # Cancelled by us if we stopped it; else the task raised it by itself, and that is a failure like any other.
            if isinstance(error, asyncio.CancelledError) and running.is_stopped:
                return Released()
            hide = hide_arguments(envelope, task.options.redact)
            return outcome_of(lease, error, retry_policy(task.options, envelope), hide)
        finally:
            if running.context.unsent:
                with suppress(asyncio.CancelledError):  # the job has ended, and is settled as it ended
                    await running.context.flush()

    async def _call(
        self,
        running: RunningJob,
        task: Task[..., Any, Any],
        envelope: Envelope,
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> Outcome:
        suspect, process = running.lease.ready.crashes >= SUSPECT_CRASHES, task.options.executor == "process"
        counts = suspect and not process
        if counts and self._suspects >= MAX_SUSPECTS:
            return Snoozed(NOT_STARTED_DELAY, "suspect")
        self._suspects += counts
        timeout = _timeout(task, envelope)
        try:
            if suspect or process:
                return _completed(await self._make_call(task, suspect=suspect)(running, args, kwargs))
            call = self._calls.get(task.name) or self._make_call(task)
            self._mark_started(running, timeout)
            if timeout:
                async with _time_limit(timeout):
                    result = await call(running, args, kwargs)
            else:
                result = await call(running, args, kwargs)
            return _completed(result)
        finally:
            self._suspects -= counts
            if self._shared_state is not None:
                self._shared_state.mark_returned(running.shared_slot, apart=running.is_apart)

    def _mark_started(self, running: RunningJob, timeout: int) -> None:
        if self._shared_state is not None and running.shared_slot < 0:
            running.shared_slot = self._shared_state.mark_started(
                running.lease.id, timeout / 1000, apart=running.is_apart
            )

    def _make_call(self, task: Task[..., Any, Any], *, suspect: bool = False) -> "TaskCall":
        """How this task is called: on the loop, in a thread or in a process, inside its middleware."""
        call: TaskCall
        if task.is_async:
            call = _on_loop(task.function)
        elif task.options.executor == "async":
            call = _blocking_loop(task.function)
        else:
            call = _in_thread(task.function, self._threads, self._thread_overran)
        if suspect or task.options.executor == "process":
            call = self._in_process(task, call, suspect=suspect)
        for middleware in reversed(self._program.middlewares):
            call = _inside(middleware, call)
        if not suspect:
            self._calls[task.name] = call
        return call

    def _in_process(self, task: Task[..., Any, Any], call_here: "TaskCall", *, suspect: bool) -> "TaskCall":
        """Run the job in a process, whose start begins its time. A suspect that cannot be imported there runs here."""

        async def call(running: RunningJob, args: list[Any], kwargs: dict[str, Any]) -> Any:
            timeout = _timeout(task, open_envelope(running.lease.payload))
            process = await self._processes.take(waits=task.options.executor == "process")
            try:
                if not await self.is_held(running):
                    raise NotStarted("its lease was lost before its process was there")
                running.is_apart = suspect
                self._mark_started(running, timeout)
                async with _time_limit(timeout):
                    packed = await process.run(task, running.context)
            except NotFound as error:
                if task.options.executor == "process":
                    raise error.__cause__ or error from None
                packed = None
            finally:
                await self._processes.give_back(process)
                self._mark_here(running)
            if packed is not None:
                return _decoded(task, packed)
            running.is_apart = False
            async with _time_limit(timeout):
                return await call_here(running, args, kwargs)

        return call

    def _mark_here(self, running: RunningJob) -> None:
        """Note that the job can crash this process from now on, because its result is handled here."""
        if self._shared_state is not None:
            self._shared_state.mark_here(running.shared_slot)

    def _thread_overran(self, context: JobContext) -> None:
        """A thread runs on beyond its time limit: its job is settled when this process has ended."""
        task, envelope = self._program.tasks[context.task], open_envelope(context.lease.payload)
        error = TimeoutError("it ran longer than its timeout, and its thread did not stop")
        self.on_overrun(context.id, outcome_of(context.lease, error, retry_policy(task.options, envelope)))


async def _always(_running: RunningJob) -> bool:
    return True


def _timeout(task: Task[..., Any, Any], envelope: Envelope) -> int:
    """In ms; 0 for none."""
    return task.options.timeout if envelope.timeout < 0 else envelope.timeout


def _completed(result: Any) -> Outcome:
    try:
        return Completed(encode_result(result))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError, PayloadTooLarge) as error:
        return Buried("result_not_storable", describe_error(error))


def _decoded(task: Task[..., Any, Any], packed: bytes) -> Any:
    """The result from a process; plain data if it does not fit the annotation, as other executors do not check that."""
    try:
        return task.signature.decode_result(packed)
    except PenstockError:
        return decode_any(packed)


@asynccontextmanager
async def _time_limit(milliseconds: int) -> AsyncIterator[None]:
    """A time limit, 0 for none; its error names the limit, and has the traceback of where the job was."""
    try:
        async with asyncio.timeout(milliseconds / 1000 or None) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimeoutError(f"it ran longer than its timeout of {show(milliseconds)}") from error.__cause__


TaskCall = Callable[[RunningJob, list[Any], dict[str, Any]], Awaitable[Any]]


def _on_loop(function: Callable[..., Any]) -> TaskCall:
    def call(_running: RunningJob, args: list[Any], kwargs: dict[str, Any]) -> Awaitable[Any]:
        awaitable: Awaitable[Any] = function(*args, **kwargs)
        return awaitable

    return call


def _blocking_loop(function: Callable[..., Any]) -> TaskCall:
    async def call(_running: RunningJob, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    return call


def _in_thread(function: Callable[..., Any], threads: Threads, on_overrun: Callable[[JobContext], None]) -> TaskCall:
    async def call(running: RunningJob, args: list[Any], kwargs: dict[str, Any]) -> Any:
        context = running.context
        work = threads.run(partial(contextvars.copy_context().run, _caught, function, args, kwargs))
        started = time.monotonic()
        try:
            value, error = await work.result()
        except asyncio.CancelledError:
            # A thread cannot be stopped. It is asked to (`current_job().cancelling`), and waited for: while it runs,
            # its slot must not be given to another job.
            late = not context.cancelling and not context.shutting_down
            context.cancelling = True
            alarm = asyncio.get_running_loop().call_later(OVERRUN_TIMEOUT, on_overrun, context) if late else None
            try:
                await _until_done(work, threads)
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


async def _until_done(work: Work[Any], threads: Threads) -> None:
    """Wait for the thread, even when cancelled; once the worker has ended, its loop need not wait."""
    while True:
        try:
            await work.result()
        except asyncio.CancelledError:
            if threads.is_closed:
                raise
            continue
        return


def _caught(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """Return StopIteration and SystemExit as values: futures cannot carry them as exceptions."""
    try:
        return function(*args, **kwargs), None
    except BaseException as error:  # noqa: BLE001  (raised again on the loop)
        return None, error


def _inside(middleware: Callable[..., Awaitable[Any]], call: TaskCall) -> TaskCall:
    async def wrapped(running: RunningJob, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return await middleware(running.context, lambda: call(running, args, kwargs))

    return wrapped
