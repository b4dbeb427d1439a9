"""The supervisor of `penstock worker`: it runs no user code, so nothing that a job does can stop it.

It starts children and one warm spare, renews all their lives with one call, keeps the timer, and when a child dies it
kills what is left of it, has its jobs taken back at once, and puts the spare in its place.
"""

import asyncio
import logging
import random
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from penstock.client.client import Client
from penstock.engine.engine import Engine
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.engine.transport.eviction_watch import EvictionWatch
from penstock.engine.transport.subscriber import WORKER_PING_AFTER, Subscriber
from penstock.errors import PenstockError
from penstock.metrics.app_metrics import AppMetrics
from penstock.metrics.prometheus import Metric, text_of
from penstock.model.options import Queues
from penstock.worker.executors.processes import died as died_of
from penstock.worker.idle import is_idle
from penstock.worker.supervisor.child import Child, ChildSetup
from penstock.worker.supervisor.child_exit import clean_up_after
from penstock.worker.supervisor.child_metrics import ChildMetrics
from penstock.worker.supervisor.watchdog import Limits, Watchdog
from penstock.worker.timer import Timer

log = logging.getLogger("penstock.worker")

RENEW: Final = 0.3  #: of a life, between two renewals
REAP: Final = 30.0  #: seconds between two looks for the dead that no renewal told of
LOOK: Final = 5.0  #: seconds after which it looks by itself, should a signal have been lost
LATE: Final = 1.5  #: seconds beyond the grace after which a child that should end is killed
REST: Final = 0.5  #: seconds beyond that to give its jobs back; others do it after its lease
CHORES: Final = 5.0  #: seconds for that at most, if the children ended before
AT_ONCE: Final = 1.5  #: the same after a second signal
SCRAPE: Final = 3.0  #: seconds that the server may take for a scrape
SLOWEST: Final = 30.0  #: seconds between two tries to start a child


class Signals(Protocol):
    """The first signal sets one, the second the other."""

    stopped: asyncio.Event
    hurry: asyncio.Event


class StartFailed(Exception):
    """No child ever got so far that it could run jobs."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Plan:
    """How many children, and when they are replaced."""

    setup: ChildSetup
    program: str  #: the module that a child runs
    processes: int = 1
    limits: Limits = field(default_factory=Limits)
    burst: bool = False
    patient: bool = False  #: an app that cannot be imported may be mended: wait for that

    @property
    def life(self) -> int:
        return round(self.setup.lease * 1000)


class Supervisor:
    """Children of one app, until it is told to stop."""

    def __init__(self, plan: Plan, hello: Callable[[dict[str, Any]], None]) -> None:
        self._plan = plan
        self._greet = hello
        self.children: list[Child] = []
        self.health = ConnectionHealth()
        self._engine: Engine | None = None
        self._eviction: EvictionWatch | None = None
        self._failures = 0  #: children in a row that died before they were up
        self._retry_at = 0.0
        self._ever_up = False
        self._stopping = False
        self._news = asyncio.Event()
        self._chores: set[asyncio.Task[None]] = set()
        self._failed: StartFailed | None = None
        self._gauges = ChildMetrics()
        self._metrics: AppMetrics | None = None

    async def metrics(self) -> str:
        """For Prometheus: these children, and the app as a whole, as far as its server answers."""
        evicts = self._eviction is not None and self._eviction.evicts
        own, of_all = self._gauges.families(self.children, self.health, evicts=evicts), list[Metric]()
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(SCRAPE):
                of_all = await self._metrics.families() if self._metrics is not None else []
        return text_of([*own, *of_all])

    @property
    def ready(self) -> bool:
        """Whether jobs are run."""
        return self.health.is_ok and any(child.up and not child.leaving for child in self.children)

    async def run(self, signals: Signals) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._news.set)
        client: Client | None = None
        try:
            if (hello := await self._first(signals)) is not None:
                client = Client(hello["namespace"], hello["url"], hello["deadline"])
                self._metrics = _metrics_of(client)
                await (
                    client.engine.script_client.connect()
                )  # at the start a server that cannot be reached is an error; later it is waited for
                self._greet(hello)
                await self._supervise(client, hello, signals)
        finally:
            loop.remove_signal_handler(signal.SIGCHLD)
            for child in self.children:
                child.kill()
                child.process.wait()
                child.close()
            if client is not None:
                await client.aclose()

    def replace_all(self, why: str) -> None:
        """Fresh children for all; those that run jobs finish them."""
        self._failures, self._retry_at = 0, 0.0
        for child in self.children:
            if child.going:
                child.say("leave", why)
            else:
                child.dismiss()
        self._news.set()

    def dump(self) -> None:
        """Have every child show where it stands; a spare stands nowhere yet."""
        for child in self.children:
            if child.going:
                child.process.send_signal(signal.SIGUSR2)

    # The loops

    async def _first(self, signals: Signals) -> dict[str, Any] | None:
        """What the first child says of the app."""
        while not signals.stopped.is_set():
            self._look_after()
            if self._failed is not None:
                raise self._failed
            for child in self.children:
                if child.hello is not None:
                    return child.hello
            await self._wait(signals.stopped)
        return None

    async def _supervise(self, client: Client, hello: dict[str, Any], signals: Signals) -> None:
        engine = self._engine = client.engine
        eviction = self._eviction = EvictionWatch(engine.script_client)
        timer = Timer(engine, self._plan.life, self.health, reap=REAP)

        async def opened() -> None:
            timer.rearm()

        mailbox = Subscriber(
            engine.script_client,
            timer.channels(),
            on_message=timer.letter,
            on_connect=opened,
            on_lasting_error=lambda _: timer.rearm(),  # it may not listen: with each try to, the timer looks by itself
            health=self.health,
            ping_after=WORKER_PING_AFTER,
        )
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
            partial(self._renew, engine, timer, eviction),
            timer.run,
            mailbox.run,
            Watchdog(engine, self.children, self._plan.limits, self._plan.life, self.health).run,
        ]
        if self._plan.burst:
            queues = Queues(hello["queues"].split(",")).names
            loops.append(partial(self._burst, client, queues, signals))
        tasks = [asyncio.create_task(_again_and_again(loop)) for loop in loops]
        try:
            while not signals.stopped.is_set() and self._failed is None:
                self._look_after()
                await self._wait(signals.stopped)
            await self._stop(signals)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._failed is not None:
            raise self._failed

    async def _renew(self, engine: Engine, timer: Timer, eviction: EvictionWatch) -> None:
        """One call keeps all children alive, and tells of cancelled jobs."""
        while True:
            wait = self._plan.life * RENEW / 1000
            children = {child.worker: child for child in self.children if child.worker}
            try:
                if children:
                    asked = time.monotonic()
                    renewed = await engine.renew(self._plan.life, list(children))
                    for name, word in zip(children, renewed.words, strict=True):
                        if word != "unknown":
                            children[name].renewed(name, asked + self._plan.life / 1000)
                        elif children[name].up:
                            children[name].say("lost", name)
                    for name, job_id in renewed.cancelling:
                        children[name].say("cancel", job_id)
                    if renewed.late:
                        timer.reap_soon()
                self.health.succeeded("renew")
                await eviction.check()
            except PenstockError as error:
                self.health.failed("renew", error)
                wait = min(wait / 3, 1.0)  # its own: while others wait for the server the leases run out
            await asyncio.sleep(wait)

    async def _burst(self, client: Client, queues: list[str], signals: Signals) -> None:
        pause = 0.02
        while not self._ever_up or not await is_idle(client.engine, client.views, queues):
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.5)
        signals.stopped.set()

    # Children

    def _look_after(self) -> None:
        """Clean up after the dead, and have as many children as there should be, and one more that waits."""
        for child in [one for one in self.children if one.process.poll() is not None]:
            self._lost(child)
        self._ever_up = self._ever_up or any(child.up for child in self.children)
        if any(child.up for child in self.children):
            self._failures = 0
        if self._stopping or self._failed is not None:
            return
        missing = self._plan.processes - sum(child.going and not child.leaving for child in self.children)
        if self._engine is None:
            missing = min(missing, 1)  # the first one says what the app is, or that there is none
        waiting = [child for child in self.children if not child.going]
        for child in [one for one in waiting if one.hello is not None][:missing]:
            if self._engine is not None:
                child.go()
                missing -= 1
        everyone_up = missing == 0 and all(child.up for child in self.children if child.going)
        spare = int(everyone_up and not self._plan.burst)
        waiting = [child for child in self.children if not child.going]
        if time.monotonic() >= self._retry_at:
            for _ in range(missing + spare - len(waiting)):
                self.children.append(Child(self._plan.setup, self._plan.program, lambda _: self._news.set()))

    def _lost(self, child: Child) -> None:
        """A child has ended, one way or another."""
        code = child.process.returncode
        child.kill()  # what it started and left behind
        self.children.remove(child)
        unborn = child.hello is None or (child.going and not child.up and not child.left and not self._stopping)
        died = not unborn and not child.left and not self._stopping and not child.dismissed
        self._gauges.lost(child, died=died)
        if unborn and not child.dismissed:
            self._start_failed(child, code)
        elif died:
            running = len(child.notes.started()) if child.notes is not None else 0
            log.error("child %d %s while it ran %d jobs; another takes its place", child.pid, died_of(code), running)
        if child.worker and self._engine is not None:
            self._chore(self._clean_up(self._engine, child, code))
        else:
            child.close()

    def _start_failed(self, child: Child, code: int) -> None:
        self._failures += 1
        pause = min(0.1 * 2**self._failures, SLOWEST)
        self._retry_at = time.monotonic() + random.uniform(pause / 2, pause)  # noqa: S311  (jitter)
        if code >= 0 and not self._ever_up and not self._plan.patient and not self._stopping:
            self._failed = StartFailed(child.failure or "the worker could not start", code or 1)
        elif not self._stopping:
            log.error(
                "child %d %s before it could run jobs; the next is tried in %.1f s", child.pid, died_of(code), pause
            )

    async def _clean_up(self, engine: Engine, child: Child, code: int) -> None:
        try:
            await clean_up_after(engine, child, code, self._plan.life, orderly=child.left or self._stopping)
        finally:
            child.close()

    # The end

    async def _stop(self, signals: Signals) -> None:
        """Let what runs finish within the grace; a second signal ends it at once. No attempt is used either way."""
        self._stopping = True
        for child in self.children:
            if child.going:
                child.say("stop")
            else:
                child.kill()
        until = time.monotonic() + self._plan.setup.grace + LATE
        hurried = False
        while self.children:
            if signals.hurry.is_set() and not hurried:
                hurried, until = True, time.monotonic() + AT_ONCE
                for child in self.children:
                    child.say("hurry")
            if time.monotonic() > until:
                for child in self.children:
                    child.kill()
            await self._wait(*(() if hurried else (signals.hurry,)))
            self._look_after()
        if self._chores:
            await asyncio.wait(self._chores, timeout=min(max(until - time.monotonic(), 0) + REST, CHORES))
        for chore in self._chores:
            chore.cancel()
        log.info("stopped: every process of this worker has ended")

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _wait(self, *others: asyncio.Event) -> None:
        """Until there is news, or for a moment: a signal may have been lost."""
        waits = [asyncio.create_task(event.wait()) for event in (self._news, *others)]
        left = self._retry_at - time.monotonic()
        pause = 0.1 if self._stopping else left + 0.01 if 0 < left < LOOK else LOOK
        await asyncio.wait(waits, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        self._news.clear()


def _metrics_of(client: Client) -> AppMetrics:
    return AppMetrics(lambda: client)


async def _again_and_again(loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A loop that fails in a way that nobody foresaw begins anew: the children need it."""
    while True:
        try:
            return await loop()
        except Exception:
            log.exception("a loop of the supervisor failed; it begins anew")
            await asyncio.sleep(1)
