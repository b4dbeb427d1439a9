"""Inline runs: a job runs in the caller, before the call that enqueued it returns.

The job is stored, leased and settled as everywhere, so arguments and results go through the codec and a handle's
`status` and `result` are real. Three things differ: retries follow without waiting; a `def` task enqueued by blocking
code runs in that code's thread, where its database transaction is; and the error of a dead job is raised.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec

from penstock.api.context import JobContext, context_or_none, enter, leave
from penstock.api.program import Program
from penstock.api.task import Task
from penstock.engine.answers import Lease, Leased
from penstock.engine.engine import Engine
from penstock.engine.transport.blocking import running_on_loop
from penstock.engine.transport.script_client import ScriptCall
from penstock.errors import BadArguments, JobFailed, PayloadTooLarge, PenstockError
from penstock.model.codec import encode_result, open_envelope
from penstock.model.payload_codec import CannotOpen
from penstock.worker.executors.processes import Processes
from penstock.worker.executors.threads import Threads
from penstock.worker.outcome import (
    Buried,
    Completed,
    Outcome,
    Raised,
    Retried,
    describe_error,
    hide_arguments,
    outcome_of,
    retry_policy,
    sealed,
)
from penstock.worker.run import Runner, RunningJob
from penstock.worker.session import CallNumbers
from penstock.worker.settle import FinishedRun, settle
from penstock.worker.unknown_tasks import UnknownTasks

T = TypeVar("T")

WORKER_TTL: Final = 86_400_000  #: ms; it holds a job only while it runs it
#: Verbs after which a job may be ready.
MAKES_READY: Final = frozenset({"enqueue", "seal_batch", "revive", "run_cron", "retry_batch", "resume", "tune"})

#: The errors of jobs that died during the outermost call that enqueued something.
_deaths: ContextVar[list[BaseException] | None] = ContextVar("penstock_inline", default=None)


class Inline:
    """A worker of one job at a time that runs in the caller."""

    def __init__(self, program: Program, engine: Engine, *, raises: bool) -> None:
        self._program = replace(program, middlewares=[self._keep_error, *program.middlewares])
        self._engine = engine
        self._raises = raises
        self._errors: dict[str, BaseException] = {}
        self._register()

    def _register(self) -> None:
        """Register under a new name: with a running clock the worker before may have expired."""
        self._worker, self._numbers = "inline-" + secrets.token_hex(6), CallNumbers()
        self._engine.register(self._worker, WORKER_TTL).sync()

    # On an event loop

    async def run(self) -> None:
        """Run jobs until nothing is ready; inside an inline job, errors are left to the outermost call."""
        with self._raise_errors():
            await self._run_ready()

    async def _run_ready(self) -> None:
        async with AsyncExitStack() as stack:
            runner: Runner | None = None
            while True:
                number, call = self._lease()
                number, lease = self._read_lease(number, await call)
                if lease is None:
                    return
                runner = runner or await self._runner(stack)
                running = RunningJob(lease, self._worker, number, runner.context(lease, self._worker, number))
                outcome = await asyncio.create_task(runner.run(running))  # of its own: it sets the current job
                for _, settling in settle(self._engine, [self._finished(lease, number, outcome)]):
                    await settling
                if isinstance(outcome, Retried):
                    await self._engine.reschedule([lease.id], 0)
                self._keep_death(lease, outcome)

    async def _runner(self, stack: AsyncExitStack) -> Runner:
        processes = Processes(1, self._program.tasks)
        stack.push_async_callback(processes.close)
        lifespan = self._program.lifespan
        state = await stack.enter_async_context(lifespan()) if lifespan else None
        threads = Threads(1)
        stack.callback(threads.close, wait=True)
        return Runner(
            self._program, self._engine, threads, processes, UnknownTasks(self._program.client().views), state
        )

    # In blocking code

    def run_sync(self) -> None:
        if running_on_loop():
            with ThreadPoolExecutor(1) as thread:  # this thread cannot run another loop
                thread.submit(copy_context().run, self.run_sync).result()
            return
        with self._raise_errors():
            self._run_ready_sync()

    def _run_ready_sync(self) -> None:
        while True:
            number, call = self._lease()
            number, lease = self._read_lease(number, call.sync())
            if lease is None:
                return
            outcome = self._run_sync(lease, number)
            for _, settling in settle(self._engine, [self._finished(lease, number, outcome)]):
                settling.sync()
            if isinstance(outcome, Retried):
                self._engine.reschedule([lease.id], 0).sync()
            self._keep_death(lease, outcome)

    def _run_sync(self, lease: Lease, number: int) -> Outcome:
        task = self._program.tasks.get(lease.ready.task)
        if task is None or task.is_async or task.options.executor == "process":
            return asyncio.run(self._run_on_loop(lease, number))
        with self._lifespan() as state:
            context = JobContext(lease, self._worker, number, self._engine, state)
            return self._run_in_thread(lease, task, context)

    def _run_in_thread(self, lease: Lease, task: Task[..., Any, Any], context: JobContext) -> Outcome:
        """What `Runner.run` does, in this thread and without an event loop."""
        try:
            envelope = open_envelope(context.payload)
            args, kwargs = task.signature.decode(envelope.args, envelope.status)
        except (msgspec.MsgspecError, BadArguments, CannotOpen) as error:
            return Buried("undecodable", describe_error(error))
        token = enter(context)
        try:
            value = _finish(self._with_middlewares(context, task, args, kwargs), task)
        except Exception as error:  # noqa: BLE001  (whatever the task raises)
            hide = hide_arguments(envelope, task.options.redact)
            return outcome_of(lease, error, retry_policy(task.options, envelope), hide)
        finally:
            leave(token)
        try:
            return Completed(encode_result(value))
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError, PayloadTooLarge) as error:
            return Buried("result_not_storable", describe_error(error))

    @contextmanager
    def _lifespan(self) -> Iterator[Any]:
        """The state of the app's lifespan, whose event loop does not run meanwhile."""
        if self._program.lifespan is None:
            yield None
            return
        stack = AsyncExitStack()
        with asyncio.Runner() as loop:
            state = loop.run(stack.enter_async_context(self._program.lifespan()))
            try:
                yield state
            finally:
                loop.run(stack.aclose())

    async def _run_on_loop(self, lease: Lease, number: int) -> Outcome:
        async with AsyncExitStack() as stack:
            runner = await self._runner(stack)
            context = runner.context(lease, self._worker, number)
            return await runner.run(RunningJob(lease, self._worker, number, context))

    def _with_middlewares(
        self, context: JobContext, task: Task[..., Any, Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        async def call() -> Any:
            return task.function(*args, **kwargs)

        def around(middleware: Callable[..., Awaitable[Any]], inner: Callable[[], Any]) -> Callable[[], Any]:
            return lambda: middleware(context, inner)

        chain: Callable[[], Any] = call
        for middleware in reversed(self._program.middlewares):
            chain = around(middleware, chain)
        coroutine: Coroutine[Any, Any, Any] = chain()
        return coroutine

    # Both

    def _lease(self) -> tuple[int, ScriptCall[Leased]]:
        number = self._numbers.take()
        return number, self._engine.lease(self._worker, number, want=1, answered=self._numbers.answered_up_to)

    def _read_lease(self, number: int, answer: Leased) -> tuple[int, Lease | None]:
        """The number of the call that was answered, and the job that it leased."""
        self._numbers.mark_answered(number)
        if answer.word != "unknown":
            return number, answer.leases[0] if answer.leases else None
        self._register()
        number, call = self._lease()
        return self._read_lease(number, call.sync())

    def _finished(self, lease: Lease, number: int, outcome: Outcome) -> FinishedRun:
        return FinishedRun(self._worker, number, lease.id, sealed(outcome, self._engine.codecs, lease))

    async def _keep_error(self, job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """The outermost middleware: keeps the exception of a job, which its outcome only describes."""
        try:
            return await call_next()
        except Exception as error:
            self._errors[job.id] = error
            raise

    def _keep_death(self, lease: Lease, outcome: Outcome) -> None:
        error = self._errors.pop(lease.id, None)
        deaths = _deaths.get()
        if isinstance(outcome, Buried) and deaths is not None:
            deaths.append(_error_of(lease, outcome) if error is None or isinstance(error, Raised) else error)

    @contextmanager
    def _raise_errors(self) -> Iterator[None]:
        """Raise the first error of the jobs that died in this block, unless it is inside another job."""
        if _deaths.get() is not None or context_or_none() is not None:
            yield
            return
        deaths: list[BaseException] = []
        token = _deaths.set(deaths)
        try:
            yield
        finally:
            _deaths.reset(token)
        if self._raises and deaths:
            raise deaths[0]


def _error_of(lease: Lease, dead: Buried) -> Exception:
    """An exception for a job that raised none itself: it timed out, or its result cannot be stored."""
    error = json.loads(dead.error)
    if error.get("type") == "TimeoutError":
        return TimeoutError(error["message"])
    text = f"{dead.reason}: {error.get('type')}: {error.get('message')}"
    return JobFailed(f"job {lease.id} of {lease.ready.task} is dead ({text})")


def _finish(work: Coroutine[Any, Any, T], task: Task[..., Any, Any]) -> T:
    """Run a coroutine that waits for nothing without an event loop, so that the task sees none, as in a thread."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    work.close()
    raise PenstockError(f"{task.name}: a middleware waits for something: enqueue from async code in a test of this")
