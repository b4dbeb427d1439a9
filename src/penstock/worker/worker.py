"""A worker inside a program: started, drained and stopped."""

import asyncio
import json
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self

from penstock.engine.keys import SEPARATOR
from penstock.engine.mailbox import Mailbox
from penstock.errors import BadOption, PenstockError
from penstock.options import Queues
from penstock.program import Program
from penstock.schedule import first
from penstock.settings import concurrency as checked_concurrency
from penstock.worker.fetch import Fetcher
from penstock.worker.renew import Renewer
from penstock.worker.run import Runner
from penstock.worker.timer import Timer

log = logging.getLogger("penstock.worker")

SHORTEST: Final = 100  #: ms that a worker's lease must last
GRACE: Final = 25.0  #: seconds that running jobs get to finish when the worker stops


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
    ) -> None:
        self._program = program
        names = program.settings.queues if queues is None else queues
        self._queues = Queues(names.split(",") if isinstance(names, str) else names)
        self._concurrency = program.settings.concurrency if concurrency is None else checked_concurrency(concurrency)
        self._life = program.settings.lease if life is None else life
        if self._life < SHORTEST:
            raise BadOption(f"lease: use at least {SHORTEST} ms; it is renewed every third of it")
        self._grace = grace
        self._stack = AsyncExitStack()
        self._stopping = asyncio.Event()
        self.name = ""

    async def run(self) -> None:
        """Work until `stop()`, or until this is cancelled."""
        async with self:
            await self._stopping.wait()

    def stop(self) -> None:
        """Take no more jobs, finish those that run, then return."""
        self._stopping.set()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def until_idle(self) -> None:
        """Until nothing is ready or running in its queues; what is paused or scheduled for later stays."""
        views = self._program.hub().views
        while True:
            await self._engine.promote()
            counts, paused = await views.counts(), await views.queues()
            every = self._queues.names == ["*"]
            names = [name for name in (counts if every else self._queues.names) if not paused.get(name)]
            if not any(counts.get(name, {}).get(state) for name in names for state in ("ready", "running")):
                return
            self._fetcher.look()
            await self._fetcher.quiet()

    async def _start(self, stack: AsyncExitStack) -> None:
        hub = self._program.hub()
        self._engine = hub.engine
        state = await stack.enter_async_context(self._program.lifespan()) if self._program.lifespan else None
        threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="penstock")
        stack.callback(threads.shutdown, wait=False)
        loop = asyncio.get_running_loop()
        runner = Runner(self._program, self._engine, threads, state)
        self._fetcher = Fetcher(self._engine, runner, self._concurrency, self._queues.order, self._begin)
        self._timer = Timer(self._engine, self._life, moved=self._fetcher.look)
        self._renewer = Renewer(
            self._engine,
            self._life,
            lost=lambda worker: _soon(loop, self._reborn, worker),
            cancelling=lambda job_id: _soon(loop, self._fetcher.cancel, job_id),
        )
        self._mail: asyncio.Task[None] | None = None
        await self._begin()
        self._renewer.start()
        stack.callback(self._renewer.stop)  # whatever happens while it stops: nobody lives on without its loops
        self._loops = [asyncio.create_task(self._fetcher.run()), asyncio.create_task(self._timer.run())]
        stack.push_async_callback(self._stop)
        log.info("worker %s: %d slots, queues %s", self.name, self._concurrency, ",".join(self._queues.names))

    async def _begin(self) -> None:
        """A new incarnation of this worker: a name that was never used, registered, with its own mailbox."""
        self.name = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(5)}"
        info = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "slots": self._concurrency})
        await self._engine.register(self.name, self._life, info, self._queues.names)
        await self._declare()
        self._renewer.worker = self.name
        self._fetcher.begin(self.name)
        if self._mail is not None:
            self._mail.cancel()
        keys = self._engine.keys
        channels = [keys.mailbox(self.name), keys.timer, keys.mailbox("crons")]
        self._mail = asyncio.create_task(
            Mailbox(self._engine.link, channels, letter=self._letter, opened=self._look).run()
        )

    async def _declare(self) -> None:
        """Make the schedules of the code known: what is the same stays, however many workers say it."""
        now = (await self._engine.due_crons(0)).now if self._program.schedules else 0
        for schedule, spec in self._program.schedules.items():
            begin = first(schedule, spec, now)
            word = await self._engine.set_cron(schedule, spec, begin, source="code", worker=self.name)
            if word == "kept":
                log.warning("schedule %s was set at run time, which wins over the code until it is removed", schedule)
            elif word != "same":
                log.info("schedule %s was %s: %s", schedule, word, spec.rule.explain())

    def _reborn(self, worker: str) -> None:
        if worker == self.name and not self._fetcher.draining:
            log.warning("worker %s was taken for dead; it goes on under a new name", worker)
            self._fetcher.look()

    def _letter(self, channel: str, text: str) -> None:
        if channel == self._engine.keys.timer:
            self._timer.rearm(int(text) if text.isdigit() else None)
        elif channel == self._engine.keys.mailbox("crons"):
            self._timer.ended(text.split(SEPARATOR)[1:])
        elif text == "work":
            self._fetcher.look()
        elif text.startswith("cancel "):
            self._fetcher.cancel(text.removeprefix("cancel "))

    async def _look(self) -> None:
        self._fetcher.look()
        self._timer.rearm()

    async def _stop(self) -> None:
        """Take nothing new, let what runs finish, give the rest back, leave."""
        self._fetcher.draining = True
        for running in self._fetcher.running.values():
            running.context.shutting_down = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace):
                await self._fetcher.drained()
        for running in list(self._fetcher.running.values()):
            running.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await self._fetcher.drained()
        self._renewer.stop()
        await _end([*self._loops, *([self._mail] if self._mail else [])])
        with suppress(PenstockError):
            more = 1
            while more:
                _, more = await self._engine.retire(self.name)
        await asyncio.to_thread(self._renewer.join)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _soon(loop: asyncio.AbstractEventLoop, act: Any, *args: Any) -> None:
    with suppress(RuntimeError):  # the loop has been closed meanwhile
        loop.call_soon_threadsafe(act, *args)
