"""The supervisor of `penstock worker`: it runs no user code, so nothing that a job does can stop it.

It starts children and one warm spare. When a child dies it kills what is left of it, has its jobs taken back at once,
and puts the spare in its place. `heartbeat.py` says who renews, reaps and promotes.
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
from penstock.errors import PenstockError
from penstock.metrics.app_metrics import AppMetrics
from penstock.metrics.prometheus import Metric, text_of
from penstock.model.options import Queues
from penstock.worker.executors.processes import died
from penstock.worker.heartbeat import SupervisorHeartbeat
from penstock.worker.idle import is_idle
from penstock.worker.supervisor.child import Child, ChildSetup
from penstock.worker.supervisor.child_exit import clean_up_after
from penstock.worker.supervisor.child_metrics import ChildMetrics
from penstock.worker.supervisor.watchdog import Limits, Watchdog

log = logging.getLogger("penstock.worker")

POLL_INTERVAL: Final = 5.0  #: seconds between two checks of the children, in case a signal was lost
STOPPING_POLL_INTERVAL: Final = 0.1
EXIT_TIMEOUT: Final = 1.5  #: seconds beyond the grace after which a child that should end is killed
HURRIED_EXIT_TIMEOUT: Final = 1.5  #: the same after a second signal
CLEAN_UP_TIMEOUT: Final = 0.5  #: seconds beyond that to give back jobs; else they are reaped when the lease is over
MAX_CLEAN_UP_TIMEOUT: Final = 5.0  #: the same, if the children ended early
SCRAPE_TIMEOUT: Final = 3.0  #: seconds that the server may take for a scrape
MAX_RESTART_INTERVAL: Final = 30.0  #: seconds between two tries to start a child


class Signals(Protocol):
    """The first signal sets `stopped`, the second `hurry`."""

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
    module: str  #: the module that a child runs
    processes: int = 1
    limits: Limits = field(default_factory=Limits)
    burst: bool = False
    waits_for_app: bool = False  #: if the app cannot be imported, try again until it can

    @property
    def lease(self) -> int:
        """In ms."""
        return round(self.setup.lease * 1000)


class Supervisor:
    """Runs children of one app until it is stopped."""

    def __init__(self, plan: Plan, on_hello: Callable[[dict[str, Any]], None]) -> None:
        """`on_hello` gets what the first child says of the app."""
        self._plan = plan
        self._on_hello = on_hello
        self.children: list[Child] = []
        self.health = ConnectionHealth()
        self._engine: Engine | None = None
        self._heartbeat: SupervisorHeartbeat | None = None
        self._failures = 0  #: children in a row that died before they were up
        self._restart_at = 0.0
        self._was_ever_up = False
        self._is_stopping = False
        self._changed = asyncio.Event()
        self._clean_ups: set[asyncio.Task[None]] = set()
        self._start_error: StartFailed | None = None
        self._child_metrics = ChildMetrics()
        self._app_metrics: AppMetrics | None = None

    async def metrics(self) -> str:
        """For Prometheus: these children, and the app as a whole, as far as its server answers."""
        evicts = self._heartbeat is not None and self._heartbeat.evicts
        own, of_app = self._child_metrics.families(self.children, self.health, evicts=evicts), list[Metric]()
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(SCRAPE_TIMEOUT):
                of_app = await self._app_metrics.families() if self._app_metrics is not None else []
        return text_of([*own, *of_app])

    @property
    def is_ready(self) -> bool:
        """Whether jobs are run."""
        return self.health.is_ok and any(child.is_up and not child.is_leaving for child in self.children)

    async def run(self, signals: Signals) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._changed.set)
        client: Client | None = None
        try:
            if (hello := await self._first_hello(signals)) is not None:
                client = Client(hello["namespace"], hello["url"], hello["deadline"])
                self._app_metrics = _metrics_of(client)
                await client.engine.script_client.connect()  # without a server that is an error; later it is waited for
                self._on_hello(hello)
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
        """Replace every child; those that run jobs finish them."""
        self._failures, self._restart_at = 0, 0.0
        for child in self.children:
            if child.is_working:
                child.send("leave", why)
            else:
                child.dismiss()
        self._changed.set()

    def dump(self) -> None:
        """Have every child that runs jobs print its stacks."""
        for child in self.children:
            if child.is_working:
                child.process.send_signal(signal.SIGUSR2)

    # The loops

    async def _first_hello(self, signals: Signals) -> dict[str, Any] | None:
        """What the first child says of the app."""
        while not signals.stopped.is_set():
            self._check_children()
            if self._start_error is not None:
                raise self._start_error
            for child in self.children:
                if child.hello is not None:
                    return child.hello
            await self._wait(signals.stopped)
        return None

    async def _supervise(self, client: Client, hello: dict[str, Any], signals: Signals) -> None:
        tasks = [asyncio.create_task(_restarted(loop)) for loop in self._loops(client, hello, signals)]
        try:
            while not signals.stopped.is_set() and self._start_error is None:
                self._check_children()
                await self._wait(signals.stopped)
            await self._stop(signals)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._start_error is not None:
            raise self._start_error

    def _loops(
        self, client: Client, hello: dict[str, Any], signals: Signals
    ) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        engine, lease = client.engine, self._plan.lease
        self._engine = engine
        self._heartbeat = SupervisorHeartbeat(engine, self.children, lease, self.health)
        watchdog = Watchdog(engine, self.children, self._plan.limits, lease, self.health)
        loops = [*self._heartbeat.loops(), watchdog.run]
        if self._plan.burst:
            queues = Queues(hello["queues"].split(",")).names
            loops.append(partial(self._stop_when_idle, client, queues, signals))
        return loops

    async def _stop_when_idle(self, client: Client, queues: list[str], signals: Signals) -> None:
        interval = 0.02
        while not self._was_ever_up or not await is_idle(client.engine, client.views, queues):
            await asyncio.sleep(interval)
            interval = min(interval * 1.5, 0.5)
        signals.stopped.set()

    # Children

    def _check_children(self) -> None:
        """Clean up after dead children; then start as many as are missing, and a spare that waits."""
        for child in [child for child in self.children if child.process.poll() is not None]:
            self._child_ended(child)
        if any(child.is_up for child in self.children):
            self._was_ever_up, self._failures = True, 0
        if self._is_stopping or self._start_error is not None:
            return
        missing = self._put_to_work()
        everyone_up = missing == 0 and all(child.is_up for child in self.children if child.is_working)
        spare = int(everyone_up and not self._plan.burst)
        waiting = sum(not child.is_working for child in self.children)
        if time.monotonic() >= self._restart_at:
            for _ in range(missing + spare - waiting):
                self.children.append(Child(self._plan.setup, self._plan.module, lambda _: self._changed.set()))

    def _put_to_work(self) -> int:
        """Let waiting children run jobs, as many as are missing; returns how many are still missing."""
        missing = self._plan.processes - sum(child.is_working and not child.is_leaving for child in self.children)
        if self._engine is None:
            return min(missing, 1)  # the first one says what the app is, or that there is none
        waiting = [child for child in self.children if not child.is_working and child.hello is not None]
        for child in waiting[:missing]:
            child.start_work()
            missing -= 1
        return missing

    def _child_ended(self, child: Child) -> None:
        code = child.process.returncode
        child.kill()  # with all processes that it started
        self.children.remove(child)
        is_over = child.has_left or self._is_stopping
        never_up = child.hello is None or (child.is_working and not child.is_up and not is_over)
        has_died = not never_up and not is_over and not child.is_dismissed
        self._child_metrics.ended(child, died=has_died)
        if never_up and not child.is_dismissed:
            self._start_failed(child, code)
        elif has_died:
            running = len(child.shared_state.started()) if child.shared_state is not None else 0
            log.error("child %d %s while it ran %d jobs; another takes its place", child.pid, died(code), running)
        if child.worker and self._engine is not None:
            task = asyncio.create_task(self._clean_up(self._engine, child, code))
            self._clean_ups.add(task)
            task.add_done_callback(self._clean_ups.discard)
        else:
            child.close()

    def _start_failed(self, child: Child, code: int) -> None:
        self._failures += 1
        pause = min(0.1 * 2**self._failures, MAX_RESTART_INTERVAL)
        self._restart_at = time.monotonic() + random.uniform(pause / 2, pause)  # noqa: S311  (jitter)
        if code >= 0 and not self._was_ever_up and not self._plan.waits_for_app and not self._is_stopping:
            self._start_error = StartFailed(child.failure or "the worker could not start", code or 1)
        elif not self._is_stopping:
            log.error("child %d %s before it could run jobs; the next is tried in %.1f s", child.pid, died(code), pause)

    async def _clean_up(self, engine: Engine, child: Child, code: int) -> None:
        try:
            orderly = child.has_left or self._is_stopping
            await clean_up_after(engine, child, code, self._plan.lease, orderly=orderly)
        finally:
            child.close()

    # The end

    async def _stop(self, signals: Signals) -> None:
        """Let running jobs finish within the grace; a second signal ends them at once. Neither uses an attempt."""
        self._is_stopping = True
        for child in self.children:
            if child.is_working:
                child.send("stop")
            else:
                child.kill()
        deadline = await self._wait_for_exits(signals)
        if self._clean_ups:
            left = max(deadline - time.monotonic(), 0)
            await asyncio.wait(self._clean_ups, timeout=min(left + CLEAN_UP_TIMEOUT, MAX_CLEAN_UP_TIMEOUT))
        for clean_up in self._clean_ups:
            clean_up.cancel()
        log.info("stopped: every process of this worker has ended")

    async def _wait_for_exits(self, signals: Signals) -> float:
        """Wait until every child has ended, or kill it; by when they had to end."""
        deadline = time.monotonic() + self._plan.setup.grace + EXIT_TIMEOUT
        hurried = False
        while self.children:
            if signals.hurry.is_set() and not hurried:
                hurried, deadline = True, time.monotonic() + HURRIED_EXIT_TIMEOUT
                for child in self.children:
                    child.send("hurry")
            if time.monotonic() > deadline:
                for child in self.children:
                    child.kill()
            await self._wait(*(() if hurried else (signals.hurry,)))
            self._check_children()
        return deadline

    async def _wait(self, *others: asyncio.Event) -> None:
        """Wait for a change, but not for long: a signal may have been lost."""
        waits = [asyncio.create_task(event.wait()) for event in (self._changed, *others)]
        until_restart = self._restart_at - time.monotonic()
        timeout = until_restart + 0.01 if 0 < until_restart < POLL_INTERVAL else POLL_INTERVAL
        if self._is_stopping:
            timeout = STOPPING_POLL_INTERVAL
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        self._changed.clear()


def _metrics_of(client: Client) -> AppMetrics:
    return AppMetrics(lambda: client)


async def _restarted(loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Restart a loop after an unexpected error: the children need it."""
    while True:
        try:
            return await loop()
        except Exception:
            log.exception("a loop of the supervisor failed; it is restarted")
            await asyncio.sleep(1)
