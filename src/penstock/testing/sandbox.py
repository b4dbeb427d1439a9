"""A sandbox: an app whose jobs are in a namespace of one test, on a clock of its own."""

import secrets
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, cast

from penstock.api.task import Call, Task
from penstock.app import Penstock
from penstock.client.client import Client
from penstock.client.producer import Producer
from penstock.engine.answers import EnqueueAnswer
from penstock.engine.engine import Engine, NewJob
from penstock.engine.record.record import read_header, read_payload
from penstock.engine.transport.blocking import is_blocking, running_on_loop
from penstock.engine.transport.script_client import ScriptCall as EngineCall
from penstock.errors import PenstockError
from penstock.model.durations import Duration, milliseconds
from penstock.model.schedule import ScheduleSpec, first
from penstock.testing.clock import Clock
from penstock.testing.inline import MAKES_READY, Inline
from penstock.testing.recorder import Enqueued, Recorder, expect, list_text, mismatch_text
from penstock.testing.server import default_url
from penstock.testing.timer_steps import MOVED, NEVER, TimerSteps
from penstock.worker.worker import Worker

AnyTask = Task[..., Any, Any]


class Sandbox:
    """While it is open, all that the app does happens here: `with Sandbox(app) as sandbox: ...`, or `async with`.

    It is the real engine on a real server: the one at `url`, or one that is started for the tests. Nothing is left
    behind. With `inline=True` a job runs when it is enqueued; with `schedules=False` the app's schedules are left out.
    """

    def __init__(self, app: Penstock, *, url: str | None = None, inline: bool = False, schedules: bool = True) -> None:
        self.app = app
        self._url = url
        self.clock = Clock(self._on_clock_move)
        self._starts_inline = inline
        self._has_schedules = schedules
        self._left_out: dict[str, ScheduleSpec] = {}
        self._inline: Inline | None = None
        self._recorder = Recorder(app.tasks)
        self._cleared: set[str] = set()
        self._client: Client | None = None
        self._outer: Client | None = None

    def __repr__(self) -> str:
        return f"<Sandbox of {self.app.name}, {len(self._recorder.jobs)} jobs enqueued>"

    # Opening and closing

    def __enter__(self) -> Self:
        if self._client is not None:
            raise PenstockError("this sandbox is open already: make another")
        settings, name = self.app.settings, f"test-{secrets.token_hex(6)}"
        self._client = Client(
            name,
            self._url or default_url(),
            settings.deadline / 1000,
            test_clock=self.clock,
            codecs=self.app.program.codecs,
        )
        self._client.engine.script_client.spy = self
        self._recorder.codecs = self._client.engine.codecs
        self._client.producer = cast("Producer", _InlineProducer(self._client.producer, self))
        self._outer, self.app._client = self.app._client, self._client  # noqa: SLF001  (its other half)
        self._declare(self._client.engine)
        self._inline = self._new_inline(raises=True) if self._starts_inline else None
        return self

    def _declare(self, engine: Engine) -> None:
        """Register the app's schedules, so that their ticks count from now on; or leave them out."""
        schedules = self.app.program.schedules
        if not self._has_schedules:
            self._left_out = dict(schedules)
            schedules.clear()
        for schedule, spec in schedules.items():
            engine.set_cron(schedule, spec, first(schedule, spec, self.clock()), source="code").sync()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client = self._open
        self.app._client, self._client = self._outer, None  # noqa: SLF001  (the same)
        self.app.program.schedules.update(self._left_out)
        client.engine.script_client.ask_sync(lambda redis: redis.delete(*client.engine.all_keys()))
        client.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client = self._open
        self.__exit__(kind, error, trace)
        await client.aclose()

    @property
    def _open(self) -> Client:
        if self._client is None:
            raise PenstockError("this sandbox is not open: with Sandbox(app) as sandbox: ...")
        return self._client

    # Running

    def run_until_idle(
        self, *, queues: Sequence[str] | str | None = None, concurrency: int | None = None
    ) -> Coroutine[Any, Any, None]:
        """Run what is ready or due until nothing is; what is due later, retries too, stays until the clock moves."""
        _require_loop("run_until_idle")
        return self._run_until_idle(queues, concurrency)

    def run_until_idle_sync(self, *, queues: Sequence[str] | str | None = None, concurrency: int | None = None) -> None:
        """The same from blocking code."""
        _require_no_loop("run_until_idle")
        self._open.run(self._run_until_idle(queues, concurrency))

    async def _run_until_idle(self, queues: Sequence[str] | str | None, concurrency: int | None) -> None:
        async with self.app.worker(queues=queues, concurrency=concurrency) as worker:
            await self._drain(worker)

    def run_for(
        self,
        duration: Duration,
        *,
        queues: Sequence[str] | str | None = None,
        concurrency: int | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Let time pass while a worker works: what falls due in it, retries and schedules too, runs at its time."""
        _require_loop("run_for")
        return self._run_for(duration, queues, concurrency)

    def run_for_sync(
        self,
        duration: Duration,
        *,
        queues: Sequence[str] | str | None = None,
        concurrency: int | None = None,
    ) -> None:
        """The same from blocking code."""
        _require_no_loop("run_for")
        self._open.run(self._run_for(duration, queues, concurrency))

    async def _run_for(self, duration: Duration, queues: Sequence[str] | str | None, concurrency: int | None) -> None:
        end, was_ticking = self.clock() + milliseconds(duration, "duration"), self.clock.is_ticking
        self.clock.freeze()
        async with self.app.worker(queues=queues, concurrency=concurrency) as worker:
            while 0 <= (due := await self._drain(worker)) <= end:
                self.clock.skip_to(due)
            self.clock.skip_to(end)
            await self._drain(worker)
        if was_ticking:
            self.clock.tick()

    async def _drain(self, worker: Worker) -> int:
        """Run jobs until nothing is ready or running; the time at which the next one is due."""
        views, timer, next_due = self._open.views, TimerSteps(self._open.engine), NEVER

        async def idle() -> bool:
            # The worker has a timer, too: the answers are of one moment only if nothing happened between them.
            nonlocal next_due
            before = await views.last_event()
            if await self._is_busy(worker):
                return False
            next_due = await timer.run()
            return next_due != MOVED and await views.last_event() == before

        await worker.until_idle(None if self.clock.is_ticking else idle)
        return next_due

    async def _is_busy(self, worker: Worker) -> bool:
        counts, paused = await self._open.views.counts(), await self._open.views.queues()
        served = [states for name, states in counts.items() if worker.serves(name) and not paused.get(name)]
        return any(states.get(state) for states in served for state in ("ready", "running"))

    @contextmanager
    def inline(self, *, raises: bool = True) -> Iterator[None]:
        """Within this block what is enqueued has run when the call returns; the error of one that died is raised.

        Tries follow each other without waiting, what is delayed stays. Without `raises` errors stay in their jobs.
        """
        before, self._inline = self._inline, self._new_inline(raises=raises)
        try:
            yield
        finally:
            self._inline = before

    def _new_inline(self, *, raises: bool) -> Inline:
        return Inline(self.app.program, self._open.engine, raises=raises)

    # What was enqueued

    def enqueued(
        self, task: AnyTask | Call[Any] | None = None, where: Mapping[str, Any] | None = None
    ) -> list[Enqueued]:
        """Every job that was enqueued since the sandbox was opened, or those that match, in their order.

        A task matches all of its jobs, or those with the arguments in `where`; a call those with its arguments and with
        the options that `.using(...)` gave it. Jobs that schedules and batches make are among them.
        """
        self._read_stored()
        jobs = [job for job in self._recorder.jobs.values() if job.id not in self._cleared]
        if task is None:
            return jobs
        expected = expect(task, where)
        return [job for job in jobs if expected.matches(job)]

    def assert_enqueued(
        self, task: AnyTask | Call[Any], where: Mapping[str, Any] | None = None, *, times: int | None = None
    ) -> list[Enqueued]:
        """At least one such job was enqueued, or exactly so many; AssertionError shows what was instead."""
        __tracebackhide__ = True
        jobs = self.enqueued(task, where)
        if (times is None and not jobs) or (times is not None and len(jobs) != times):
            raise AssertionError(mismatch_text(expect(task, where), self.enqueued(), times, len(jobs)))
        return jobs

    def assert_not_enqueued(
        self, task: AnyTask | Call[Any] | None = None, where: Mapping[str, Any] | None = None
    ) -> None:
        """No such job was enqueued; without a task: none at all."""
        __tracebackhide__ = True
        if jobs := self.enqueued(task, where):
            wanted = "no job at all" if task is None else f"not to be enqueued: {expect(task, where)}"
            raise AssertionError(f"expected {wanted}\n{list_text(jobs)}")

    def clear(self) -> None:
        """Forget what was enqueued so far; the jobs themselves stay."""
        self._read_stored()
        self._cleared |= self._recorder.jobs.keys()

    def _read_stored(self) -> None:
        """Record the jobs of schedules and batches that have not run yet."""
        engine = self._open.engine
        script_client = engine.script_client
        stored: dict[bytes, bytes] = script_client.ask_sync(lambda client: client.hgetall(engine.keys("jobs")))
        new = [job_id for job_id in stored if job_id and job_id.decode() not in self._recorder.jobs]
        if new:
            payloads = script_client.ask_sync(lambda client: client.hmget(engine.keys("payloads"), new))
            for job_id, apart in zip(new, payloads, strict=True):
                payload = read_payload(stored[job_id]) if apart is None else apart
                if payload is not None:
                    self._recorder.add_stored(job_id.decode(), read_header(stored[job_id]), payload)

    # Hooks of the app's calls

    def saw(self, call: EngineCall[Any], answer: Any) -> None:
        self._recorder.saw(call, answer)

    async def after(self, verb: str) -> None:
        if verb in MAKES_READY and verb != "enqueue":
            await self.run_inline()

    def after_sync(self, verb: str) -> None:
        if self._inline is not None and verb in MAKES_READY:
            self._inline.run_sync()

    async def run_inline(self) -> None:
        if self._inline is not None and not is_blocking():  # for blocking code, `after_sync` has done it
            await self._inline.run()

    def _on_clock_move(self) -> None:
        """Keep workers in the background alive, and wake their timers."""
        if self._client is None:
            return
        engine = self._client.engine
        names = engine.script_client.ask_sync(lambda client: client.zrange(engine.keys("workers"), 0, -1))
        workers = [name.decode() for name in names if name]
        if workers:
            engine.renew(self.app.settings.lease, workers).sync()
            engine.script_client.ask_sync(lambda client: client.execute_command("SPUBLISH", engine.keys.timer, "moved"))


class _InlineProducer:
    """A producer that then runs the jobs inline, in the task of the caller."""

    def __init__(self, producer: Producer, sandbox: Sandbox) -> None:
        self._producer = producer
        self._sandbox = sandbox

    async def enqueue(self, job: NewJob) -> EnqueueAnswer:
        answer = await self._producer.enqueue(job)
        await self._sandbox.run_inline()
        return answer

    def enqueue_sync(self, job: NewJob) -> EnqueueAnswer:
        return self._producer.enqueue_sync(job)

    async def enqueue_many(
        self, jobs: Iterable[NewJob] | AsyncIterable[NewJob], *, raises: bool = True
    ) -> AsyncIterator[list[EnqueueAnswer]]:
        async for page in self._producer.enqueue_many(jobs, raises=raises):
            yield page
        await self._sandbox.run_inline()


def _require_loop(name: str) -> None:
    """Raise in blocking code, where the coroutine would never be awaited and the test would test nothing."""
    if not running_on_loop():
        raise PenstockError(f"{name}() is for async tests, which await it: use {name}_sync() in blocking code")


def _require_no_loop(name: str) -> None:
    if running_on_loop():
        raise PenstockError(f"{name}_sync() would block the event loop that has to run the jobs: await {name}()")
