"""Who renews leases, and who runs the timer.

| | a worker inside a program | a worker under `penstock worker` |
|---|---|---|
| renews its lease | `RenewalThread` | `SupervisorHeartbeat`, all children in one call |
| promotes, expires, admits, ticks, prunes | `Timer`, on the worker's loop | `Timer`, on the supervisor's loop |
| reaps other workers | `Timer`, every third of a lease | `Timer`, when a renewal reports late workers, or every 30 s |
| returns its jobs at its end | `OwnHeartbeat.retire` | its supervisor, `child_exit.clean_up_after` |

A child renews nothing itself (`SupervisedHeartbeat`): it only tells its supervisor its name and that its loop turns.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from penstock.engine.answers import Renewed
from penstock.engine.engine import Engine
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.engine.transport.eviction_watch import EvictionWatch
from penstock.engine.transport.subscriber import WORKER_PING_AFTER, Subscriber
from penstock.errors import PenstockError
from penstock.worker.supervisor.child import Child
from penstock.worker.supervisor.shared_state import SharedState
from penstock.worker.timer import Timer

log = logging.getLogger("penstock.worker")

BEAT_INTERVAL: Final = 2.0  #: seconds between two signs that a child's loop turns
SUPERVISOR_RENEWAL: Final = 0.3  #: of a lease, between two renewals by a supervisor
SUPERVISOR_REAP_INTERVAL: Final = 30.0  #: seconds between two reaps of dead workers that no renewal reported


class Heartbeat(Protocol):
    """What a session needs of it."""

    shared_state: SharedState | None

    @property
    def valid_until(self) -> float:
        """Until then, by the monotonic clock, no other worker takes this one's jobs."""

    def use_name(self, worker: str, info: dict[str, Any], queues: list[str], valid_until: float) -> None:
        """Renew this name from now on; its lease lasts until `valid_until` without a renewal."""

    def channels(self) -> list[str]:
        """The channels that it listens to, beside the worker's own."""

    def receive(self, channel: str, message: bytes) -> None:
        """A message came on one of them."""

    def rearm(self) -> None:
        """Check the due times again: something may be due earlier."""

    def start(self) -> list[Coroutine[Any, Any, None]]:
        """Loops to run on the worker's event loop."""

    def stop(self) -> None:
        """The worker ends."""

    async def retire(self, worker: str) -> None:
        """The worker has ended: return whatever it still holds."""


class OwnHeartbeat:
    """Inside a program: a thread renews, and the timer runs on the worker's loop."""

    shared_state: SharedState | None = None

    def __init__(
        self,
        engine: Engine,
        lease: int,
        health: ConnectionHealth,
        *,
        on_lost: Callable[[str], None],
        on_cancel: Callable[[str], None],
        on_work: Callable[[], None],
    ) -> None:
        """`on_lost` and `on_cancel` are called in the thread that renews."""
        self._engine = engine
        self._timer = Timer(engine, lease, health, on_work=on_work)
        self._renewals = RenewalThread(engine, lease, on_lost=on_lost, on_cancel=on_cancel)

    @property
    def valid_until(self) -> float:
        return self._renewals.valid_until

    def use_name(self, worker: str, info: dict[str, Any], queues: list[str], valid_until: float) -> None:  # noqa: ARG002  (the protocol's)
        self._renewals.worker, self._renewals.valid_until = worker, valid_until

    def channels(self) -> list[str]:
        return self._timer.channels()

    def receive(self, channel: str, message: bytes) -> None:
        self._timer.receive(channel, message)

    def rearm(self) -> None:
        self._timer.rearm()

    def start(self) -> list[Coroutine[Any, Any, None]]:
        self._renewals.start()
        return [self._timer.run()]

    def stop(self) -> None:
        self._renewals.stop()

    async def retire(self, worker: str) -> None:
        more = 1
        while more:
            _, more = await self._engine.retire(worker)
        await self._renewals.ended()


class RenewalThread:
    """Renews one worker on a thread and a connection of its own: a task that blocks the loop costs no lease."""

    def __init__(
        self, engine: Engine, lease: int, *, on_lost: Callable[[str], None], on_cancel: Callable[[str], None]
    ) -> None:
        self._engine = engine
        self._eviction = EvictionWatch(engine.script_client)
        self._lease = lease
        self._on_lost = on_lost
        self._on_cancel = on_cancel
        self.worker = ""
        self.valid_until = 0.0  #: of the monotonic clock
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-renew", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    async def ended(self) -> None:
        """Wait for the thread's end. It is not joined: a wait that is given up must leave no thread that waits."""
        if self._thread.ident is not None:
            await self._ended.wait()

    def _run(self) -> None:
        try:
            self._renew_until_stopped()
        finally:
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                self._loop.call_soon_threadsafe(self._ended.set)

    def _renew_until_stopped(self) -> None:
        well, wait = True, self._lease / 3000
        while not self._stop.wait(wait):
            try:
                self._renew(self.worker)
                if not well:
                    log.warning("the worker's lease is renewed again")
                well, wait = True, self._lease / 3000
                self._eviction.check_sync()
            except Exception as error:
                if not isinstance(error, PenstockError):
                    log.exception("the worker's lease could not be renewed")
                elif well:
                    log.warning("the worker's lease could not be renewed: %s", error)
                well, wait = False, min(1.0, self._lease / 10_000)

    def _renew(self, worker: str) -> None:
        asked_at = time.monotonic()
        renewed = self._engine.renew(self._lease, [worker]).sync()
        if renewed.words == ["unknown"]:
            self._on_lost(worker)
        elif self.worker == worker:
            self.valid_until = asked_at + self._lease / 1000
        for _, job_id in renewed.cancelling:
            self._on_cancel(job_id)


class SupervisedHeartbeat:
    """In a child: its supervisor reads the shared state, renews, runs the timer, and cleans up after its end."""

    def __init__(self, shared_state: SharedState, send: Callable[..., None]) -> None:
        self.shared_state: SharedState | None = shared_state
        self._shared_state = shared_state
        self._send = send

    @property
    def valid_until(self) -> float:
        return self._shared_state.valid_until

    def use_name(self, worker: str, info: dict[str, Any], queues: list[str], valid_until: float) -> None:
        self._shared_state.worker, self._shared_state.valid_until = worker, valid_until
        self._send("named", worker, info, queues)

    def channels(self) -> list[str]:
        return []

    def receive(self, channel: str, message: bytes) -> None:
        pass

    def rearm(self) -> None:
        pass

    def start(self) -> list[Coroutine[Any, Any, None]]:
        return [self._beat()]

    async def _beat(self) -> None:
        while True:
            self._shared_state.beat()
            await asyncio.sleep(BEAT_INTERVAL)

    def stop(self) -> None:
        pass

    async def retire(self, worker: str) -> None:
        pass


class SupervisorHeartbeat:
    """In a supervisor: renews all children, and runs the timer of their namespace."""

    def __init__(self, engine: Engine, children: Sequence[Child], lease: int, health: ConnectionHealth) -> None:
        """`children` is the supervisor's own list, which changes."""
        self._engine = engine
        self._children = children
        self._lease = lease
        self._health = health
        self._eviction = EvictionWatch(engine.script_client)
        self._timer = Timer(engine, lease, health, reap_interval=SUPERVISOR_REAP_INTERVAL)

    @property
    def evicts(self) -> bool:
        """Whether the server evicts keys when it is full, as far as is known."""
        return self._eviction.evicts

    def loops(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        subscriber = Subscriber(
            self._engine.script_client,
            self._timer.channels(),
            on_message=self._timer.receive,
            on_connect=self._catch_up,
            on_lasting_error=lambda _: (
                self._timer.rearm()
            ),  # this user may not subscribe: the timer checks with each attempt
            health=self._health,
            ping_after=WORKER_PING_AFTER,
        )
        return [self._renew, self._timer.run, subscriber.run]

    async def _catch_up(self) -> None:
        self._timer.rearm()

    async def _renew(self) -> None:
        while True:
            wait = self._lease * SUPERVISOR_RENEWAL / 1000
            children = {child.worker: child for child in self._children if child.worker}
            try:
                if children:
                    asked_at = time.monotonic()
                    renewed = await self._engine.renew(self._lease, list(children))
                    self._tell(children, renewed, asked_at + self._lease / 1000)
                self._health.succeeded("renew")
                await self._eviction.check()
            except PenstockError as error:
                self._health.failed("renew", error)
                wait = min(wait / 3, 1.0)  # not the shared pause: leases would run out while other loops try
            await asyncio.sleep(wait)

    def _tell(self, children: dict[str, Child], renewed: Renewed, valid_until: float) -> None:
        """Pass the answer of the renewal to the children, and report late workers to the timer."""
        for name, word in zip(children, renewed.words, strict=True):
            if word != "unknown":
                children[name].renewed(name, valid_until)
            elif children[name].is_up:
                children[name].send("lost", name)
        for name, job_id in renewed.cancelling:
            children[name].send("cancel", job_id)
        if renewed.late:
            self._timer.reap_soon()
