"""A worker inside a program: started, drained and stopped."""

import asyncio
import hashlib
import json
import logging
import math
import os
import random
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from penstock.api.program import Program
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.engine.transport.subscriber import WORKER_PING_AFTER, Subscriber
from penstock.errors import BadOption, PenstockError, Unavailable
from penstock.model.options import Queues
from penstock.model.schedule import first
from penstock.model.settings import concurrency as checked_concurrency
from penstock.worker.executors.processes import Processes
from penstock.worker.executors.threads import Threads
from penstock.worker.fetch import Fetcher
from penstock.worker.heartbeat import Heartbeat, OwnHeartbeat
from penstock.worker.idle import is_idle
from penstock.worker.job_log import JobLog, captured
from penstock.worker.outcome import Outcome
from penstock.worker.run import Runner
from penstock.worker.settle import SettledRun
from penstock.worker.unknown_tasks import UnknownTasks

log = logging.getLogger("penstock.worker")

SHORTEST: Final = 100  #: ms that a worker's lease must last
GRACE: Final = 25.0  #: seconds that running jobs get to finish when the worker stops
# After the grace a worker leaves within two seconds, though the server be gone.
SETTLE: Final = 0.8  #: seconds for jobs that were cancelled to end and be settled
LAST_LINES: Final = 0.4  #: seconds after that for the last log lines
LEAVE: Final = 0.8  #: seconds after that for giving back the rest; else others do so when its lease is over


class Worker:
    """Runs the jobs of some queues in this process: `async with app.worker(): ...` or `await app.worker().run()`."""

    def __init__(
        self,
        program: Program,
        *,
        queues: Sequence[str] | str | None = None,
        concurrency: int | None = None,
        life: int | None = None,
        grace: float = GRACE,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self._program = program
        names = program.settings.queues if queues is None else queues
        self._queues = Queues(names.split(",") if isinstance(names, str) else names)
        self._concurrency = program.settings.concurrency if concurrency is None else checked_concurrency(concurrency)
        self._life = program.settings.lease if life is None else life
        if self._life < SHORTEST:
            raise BadOption(f"lease: use at least {SHORTEST} ms; it is renewed every third of it")
        self.grace: float | None = grace  #: None: as long as they take
        self.quota = math.inf  #: jobs that it takes at most
        self._supervised = heartbeat
        self.overran = asyncio.Event()  #: a thread does not end: only a new process gets rid of it
        self._stack = AsyncExitStack()
        self._stopping = asyncio.Event()
        self._lost = asyncio.Event()  #: the engine does not know its name any longer
        self.name = ""

    async def run(self) -> None:
        """Work until `stop()`, or until this is cancelled."""
        async with self:
            await self._stopping.wait()

    def stop(self) -> None:
        """Take no more jobs, finish those that run, then return."""
        self._stopping.set()

    def hurry(self) -> None:
        """Do not wait for running jobs when it stops: they are cut, and what does not end at once goes back."""
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

    def serves(self, queue: str) -> bool:
        return not {"*", queue}.isdisjoint(self._queues.names)

    async def until_idle(self, idle: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Until nothing is ready or running in its queues; what is paused or scheduled for later stays.

        Or until `idle` says that it is.
        """
        views = self._program.client().views
        done = idle or (lambda: is_idle(self._engine, views, self._queues.names))
        while not await done():
            self._fetcher.look()
            await self._fetcher.quiet()

    async def _start(self, stack: AsyncExitStack) -> None:
        client = self._program.client()
        self._engine = client.engine
        self._health = ConnectionHealth()
        self._processes = Processes(self._concurrency, self._program.tasks)
        stack.push_async_callback(self._processes.close)
        state = await stack.enter_async_context(self._program.lifespan()) if self._program.lifespan else None
        threads = Threads(self._concurrency)
        stack.callback(threads.close)
        self._heartbeat = self._supervised or self._own_keeper()
        unknown = UnknownTasks(client.views)
        runner = Runner(self._program, self._engine, threads, self._processes, unknown, state, self._heartbeat.notes)
        runner.overrun = self._overrun
        runner.sink = self._lines = JobLog(self._engine)
        stack.enter_context(captured(self._program.settings.job_log))
        order = self._queues.order
        self._fetcher = Fetcher(
            self._engine, runner, self._concurrency, order, self.reborn, self._health, self._heartbeat
        )
        runner.is_held = self._fetcher.is_held
        self._mail: asyncio.Task[None] | None = None
        self._fetcher.left = self.quota
        await self._begin_patiently()
        loops = self._heartbeat.start()
        stack.callback(self._heartbeat.stop)  # whatever happens while it stops: nobody lives on without its loops
        loops += [self._fetcher.run(), self._fetcher.check.run(), self._rebirths()]
        self._loops = [asyncio.create_task(loop) for loop in loops]
        stack.push_async_callback(self._stop)
        log.info("worker %s: %d slots, queues %s", self.name, self._concurrency, ",".join(self._queues.names))

    def _own_keeper(self) -> Heartbeat:
        loop = asyncio.get_running_loop()
        return OwnHeartbeat(
            self._engine,
            self._life,
            self._health,
            lost=lambda worker: soon(loop, self.reborn, worker),
            cancelling=lambda job_id: soon(loop, self.cancel, job_id),
            moved=self._more,
        )

    async def _begin_patiently(self) -> None:
        """Inside a program a server that cannot be reached is its error; under a supervisor it is waited for."""
        while True:
            try:
                return await self._begin()
            except Unavailable as error:
                if self._supervised is None:
                    raise
                self._health.failed("start", error)
                await asyncio.sleep(random.uniform(0.5, 1.5))  # noqa: S311  (jitter)

    async def _rebirths(self) -> None:
        """A new incarnation whenever the last one was lost: only here, so that there is one at a time."""
        while True:
            await self._lost.wait()
            try:
                await self._begin()
            except Exception as error:
                if not isinstance(error, PenstockError):
                    log.exception("worker %s could not begin anew", self.name)
                self._health.failed("start", error)
                await asyncio.sleep(random.uniform(0.5, 1.5))  # noqa: S311  (jitter)

    async def _begin(self) -> None:
        """A new incarnation of this worker: a name that was never used, registered, with its own mailbox.

        Until it is registered nothing knows the name; then everything changes in one step.
        """
        name = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(5)}"
        info = about(self._program) | {"slots": self._concurrency}
        valid_until = time.monotonic() + self._life / 1000
        await self._engine.register(name, self._life, json.dumps(info), self._queues.names)
        await self._declare(name)
        self._health.succeeded("start")
        self.name = name
        self._lost.clear()
        self._heartbeat.begin(name, info, self._queues.names, valid_until)
        self._fetcher.begin(name)
        self._listen(name)

    def _listen(self, name: str) -> None:
        """To the letters of this incarnation, and no more to those of the one before it."""
        if self._mail is not None:
            self._mail.cancel()

        def letter(channel: str, text: bytes) -> None:
            if self.name == name:
                self._letter(channel, text)

        channels = [self._engine.keys.mailbox(name), *self._heartbeat.channels()]
        mailbox = Subscriber(
            self._engine.script_client,
            channels,
            on_message=letter,
            on_connect=self._look,
            on_lasting_error=self._unheard,
            health=self._health,
            ping_after=WORKER_PING_AFTER,
        )
        self._mail = asyncio.create_task(mailbox.run())

    def _unheard(self, _: PenstockError) -> None:
        """It may not listen: with each try to, it looks by itself for what it would be told."""
        self._fetcher.look()
        self._heartbeat.rearm()

    async def _declare(self, worker: str) -> None:
        """Make the schedules of the code known: what is the same stays, however many workers say it."""
        now = (await self._engine.due_crons(0)).now if self._program.schedules else 0
        for schedule, spec in self._program.schedules.items():
            begin = first(schedule, spec, now)
            word = await self._engine.set_cron(schedule, spec, begin, source="code", worker=worker)
            if word == "kept":
                log.warning("schedule %s was set at run time, which wins over the code until it is removed", schedule)
            elif word != "same":
                log.info("schedule %s was %s: %s", schedule, word, spec.rule.explain())

    @property
    def spent(self) -> bool:
        """Whether it has taken all the jobs that it may."""
        return self._fetcher.left <= 0

    def cut(self) -> None:
        """Stop what runs, as far as it can be stopped."""
        for running in list(self._fetcher.running.values()):
            running.context.shutting_down = True
            running.stop()

    @property
    def stuck(self) -> list[SettledRun]:
        """What overran its time in a thread, and how it is to be settled when this process has ended."""
        return list(self._fetcher.stuck.values())

    def cancel(self, job_id: str) -> None:
        """Somebody asked for this job to be cancelled."""
        self._fetcher.cancel(job_id)

    def _overrun(self, job_id: str, outcome: Outcome) -> None:
        self._fetcher.overrun(job_id, outcome)
        self.overran.set()

    def reborn(self, worker: str) -> None:
        """The engine knows it no longer. However many say so, and however often, it is reborn once."""
        if worker == self.name and not self._lost.is_set() and not self._fetcher.draining:
            log.warning("worker %s was taken for dead; it goes on under a new name", worker)
            self._fetcher.lose()
            self._lost.set()

    def _letter(self, channel: str, text: bytes) -> None:
        if channel != self._engine.keys.mailbox(self.name):
            self._heartbeat.letter(channel, text)
        elif text.startswith(b"job\x1f"):
            self._fetcher.take(text)
        elif text == b"work":
            self._fetcher.look()
        elif text.startswith(b"cancel "):
            self._fetcher.cancel(text.decode().removeprefix("cancel "))

    def _more(self) -> None:
        self._fetcher.look()

    async def _look(self) -> None:
        """What may have been said while nobody listened: that there is work, when something is due, what to cancel.

        And it may be another server that answers, or one that lost something.
        """
        self._fetcher.look()
        self._fetcher.check.soon()
        self._heartbeat.rearm()
        name = self.name
        renewed = await self._engine.renew(self._life, [name])
        if renewed.words == ["unknown"]:
            self.reborn(name)
        for _, job_id in renewed.cancelling:
            self.cancel(job_id)

    async def _stop(self) -> None:
        """Take nothing new, let what runs finish, give the rest back; whatever happens meanwhile, leave."""
        try:
            await self._finish()
        finally:
            self.cut()
            self._heartbeat.stop()
            await _end([*self._loops, *([self._mail] if self._mail else [])])
            with suppress(PenstockError):
                await _within(LEAVE, self._heartbeat.gone(self.name))

    async def _finish(self) -> None:
        self._fetcher.drain()
        self._processes.close_doors()
        for running in self._fetcher.running.values():
            running.context.shutting_down = True
        await _within(self.grace, self._fetcher.drained())
        self.cut()
        await _within(SETTLE, self._fetcher.drained())
        await _within(LAST_LINES, self._lines.aclose())


def about(program: Program) -> dict[str, Any]:
    """What others may know of a worker: where it runs, on which code, and which tasks it knows."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": version("penstock"),
        "code": code_version(program),
        "tasks": sorted(program.tasks),
    }


def code_version(program: Program) -> str:
    """Tells whether two workers run the same code: made from the files that define the tasks."""
    modules = {task.function.__module__ for task in program.tasks.values()}
    files = sorted({str(getattr(sys.modules.get(name), "__file__", None) or "") for name in modules} - {""})
    made = hashlib.sha256()
    for file in files:
        with suppress(OSError):
            made.update(Path(file).read_bytes())
    return made.hexdigest()[:8]


async def _within(seconds: float | None, work: Coroutine[Any, Any, None]) -> None:
    """Until it is done, or for so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def soon(loop: asyncio.AbstractEventLoop, act: Any, *args: Any) -> None:
    """Have something done on a loop, from another thread."""
    with suppress(RuntimeError):  # the loop has been closed meanwhile
        loop.call_soon_threadsafe(act, *args)
