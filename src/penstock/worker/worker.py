"""A worker inside a program: started, drained and stopped."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self

from penstock.api.program import Program
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.errors import BadOption, PenstockError
from penstock.model.options import Queues
from penstock.model.schedule import first
from penstock.model.settings import concurrency as checked_concurrency
from penstock.worker.executors.processes import Processes
from penstock.worker.executors.threads import Threads
from penstock.worker.fetch import Fetcher
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.idle import is_idle
from penstock.worker.job_log import JobLog, captured
from penstock.worker.outcome import Outcome
from penstock.worker.run import Runner
from penstock.worker.session import Session, about, cancel_all
from penstock.worker.settle import FinishedRun
from penstock.worker.slots import Slots
from penstock.worker.unknown_tasks import UnknownTasks

log = logging.getLogger("penstock.worker")

MIN_LEASE: Final = 100  #: ms
GRACE: Final = 25.0  #: seconds that running jobs get to finish when the worker stops
# After the grace a worker leaves within two seconds, even without a server.
SETTLE_TIMEOUT: Final = 0.8  #: seconds for jobs that were cancelled to end and be settled
LOG_TIMEOUT: Final = 0.4  #: seconds after that for the last log lines
RETIRE_TIMEOUT: Final = 0.8  #: seconds after that to give back the rest; else it is reaped when its lease is over


class Worker:
    """Runs the jobs of some queues in this process: `async with app.worker(): ...` or `await app.worker().run()`."""

    def __init__(
        self,
        program: Program,
        *,
        queues: Sequence[str] | str | None = None,
        concurrency: int | None = None,
        lease: int | None = None,
        grace: float = GRACE,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """`lease` is in ms; `heartbeat` is given by a child of a supervisor."""
        self._program = program
        names = program.settings.queues if queues is None else queues
        self._queues = Queues(names.split(",") if isinstance(names, str) else names)
        self._concurrency = program.settings.concurrency if concurrency is None else checked_concurrency(concurrency)
        self._lease = program.settings.lease if lease is None else lease
        if self._lease < MIN_LEASE:
            raise BadOption(f"lease: use at least {MIN_LEASE} ms; it is renewed every third of it")
        self.grace: float | None = grace  #: None: as long as they take
        self.quota = math.inf  #: jobs that it takes at most
        self._supervised_heartbeat = heartbeat
        self.overran = asyncio.Event()  #: set when a thread does not end, which only a new process can cure
        self._stack = AsyncExitStack()
        self._stopping = asyncio.Event()
        self._session: Session | None = None

    async def run(self) -> None:
        """Work until `stop()`, or until this is cancelled."""
        async with self:
            await self._stopping.wait()

    def stop(self) -> None:
        """Take no more jobs, finish those that run, then return."""
        self._stopping.set()

    def hurry(self) -> None:
        """Do not wait for running jobs at the stop: cancel them, and release what does not end at once."""
        self.grace = 0.0

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def name(self) -> str:
        """The name under which it leases at present; empty before it does."""
        return "" if self._session is None else self._session.registration.name

    def serves(self, queue: str) -> bool:
        return not {"*", queue}.isdisjoint(self._queues.names)

    async def until_idle(self, idle: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Until nothing is ready or running in its queues; what is paused or scheduled for later stays.

        Or until `idle` says that it is.
        """
        views = self._program.client().views
        done = idle or (lambda: is_idle(self._engine, views, self._queues.names))
        while not await done():
            self._fetcher.work_arrived()
            await self._slots.quiet()

    # The start

    async def _start(self, stack: AsyncExitStack) -> None:
        self._engine = self._program.client().engine
        self._processes = Processes(self._concurrency, self._program.tasks)
        stack.push_async_callback(self._processes.close)
        state = await stack.enter_async_context(self._program.lifespan()) if self._program.lifespan else None
        threads = Threads(self._concurrency)
        stack.callback(threads.close)
        health = ConnectionHealth()
        session = self._session = self._new_session(health)
        unknown_tasks = UnknownTasks(self._program.client().views)
        runner = Runner(
            self._program, self._engine, threads, self._processes, unknown_tasks, state, session.heartbeat.shared_state
        )
        runner.on_overrun = self._thread_overran
        runner.sink = self._job_log = JobLog(self._engine)
        stack.enter_context(captured(self._program.settings.job_log))
        self._slots = Slots(self._engine, session, runner, self._concurrency)
        self._slots.quota = self.quota
        runner.is_held = self._slots.is_held
        self._fetcher = Fetcher(self._engine, session, self._slots, self._queues.order, health)
        await session.open()
        loops = session.loops()
        stack.callback(session.heartbeat.stop)  # last: without the loops nothing may renew
        self._loops = [asyncio.create_task(loop) for loop in (*loops, self._fetcher.run())]
        stack.push_async_callback(self._stop)
        log.info("worker %s: %d slots, queues %s", self.name, self._concurrency, ",".join(self._queues.names))

    def _new_session(self, health: ConnectionHealth) -> Session:
        return Session(
            self._engine,
            health,
            kind="worker",
            lease=self._lease,
            queues=self._queues.names,
            about=about(self._program) | {"slots": self._concurrency},
            held=lambda: self._slots.held,
            on_work=self._work_arrived,
            on_cancel=self.cancel,
            on_push=self._job_pushed,
            prepare=self._declare_schedules,
            heartbeat=self._supervised_heartbeat,
        )

    async def _declare_schedules(self, worker: str) -> None:
        """Declare the schedules of the code. An unchanged schedule stays as it is, however many workers declare it."""
        now = (await self._engine.due_crons(0)).now if self._program.schedules else 0
        for schedule, spec in self._program.schedules.items():
            word = await self._engine.set_cron(schedule, spec, first(schedule, spec, now), source="code", worker=worker)
            if word == "kept":
                log.warning("schedule %s was set at run time, which wins over the code until it is removed", schedule)
            elif word != "same":
                log.info("schedule %s was %s: %s", schedule, word, spec.rule.explain())

    # While it runs

    @property
    def is_spent(self) -> bool:
        """Whether it has taken as many jobs as `quota` allows."""
        return self._slots.quota <= 0

    @property
    def stuck(self) -> list[FinishedRun]:
        """Runs whose threads do not end, and how they are to be settled when this process has ended."""
        return list(self._slots.stuck.values())

    def cancel(self, job_id: str) -> None:
        """Somebody asked for this job to be cancelled."""
        self._fetcher.cancel(job_id)

    def cut(self) -> None:
        """Stop the running jobs, as far as they can be stopped."""
        self._slots.stop_all()

    def lose_name(self, name: str) -> None:
        """The server no longer knows this name: register another."""
        if self._session is not None:
            self._session.lose(name)

    def _work_arrived(self) -> None:
        self._fetcher.work_arrived()

    def _job_pushed(self, message: bytes) -> None:
        self._fetcher.job_pushed(message)

    def _thread_overran(self, job_id: str, outcome: Outcome) -> None:
        self._slots.thread_overran(job_id, outcome)
        self.overran.set()

    # The end

    async def _stop(self) -> None:
        """Take no more jobs, let running ones finish, release the rest; leave in any case."""
        assert self._session is not None
        try:
            await self._finish(self._session)
        finally:
            self.cut()
            self._session.heartbeat.stop()
            await cancel_all(self._loops)
            await self._session.unsubscribe()
            with suppress(PenstockError):
                await _within(RETIRE_TIMEOUT, self._session.heartbeat.retire(self.name))

    async def _finish(self, session: Session) -> None:
        self._slots.is_draining = session.is_stopping = True
        self._processes.refuse_waiting()
        self._slots.announce_shutdown()
        await _within(self.grace, self._slots.drained())
        self.cut()
        await _within(SETTLE_TIMEOUT, self._slots.drained())
        await _within(LOG_TIMEOUT, self._job_log.aclose())


async def _within(seconds: float | None, work: Coroutine[Any, Any, None]) -> None:
    """Wait until the awaitable is done, at most for some seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work
