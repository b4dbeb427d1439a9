"""A worker's or stream's session with the server: registered under a name, renewed, subscribed, replaced when lost.

A name is used once. When the server no longer knows it, other workers have its jobs already; the session registers a
new name, and settles of jobs that ran under the old name are refused.
"""

import asyncio
import hashlib
import json
import logging
import os
import random
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from penstock.api.program import Program
from penstock.engine.engine import Engine
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.engine.transport.subscriber import WORKER_PING_AFTER, Subscriber
from penstock.errors import PenstockError, Unavailable
from penstock.model.payload_codec import key_names
from penstock.worker.heartbeat import Heartbeat, OwnHeartbeat
from penstock.worker.lease_check import HeldJobs, LeaseCheck

log = logging.getLogger("penstock.worker")

MAX_CALLS_AHEAD: Final = 16
"""Lease calls made after one that is unanswered; the server remembers twice as many (lib/lease_calls.lua)."""


class CallNumbers:
    """The numbers of lease calls. If an answer was lost, its number is used again: the new call gets the same jobs."""

    def __init__(self) -> None:
        self._last = 0
        self._lost: list[int] = []
        self._in_flight: set[int] = set()

    @property
    def last(self) -> int:
        """The highest number used so far."""
        return self._last

    @property
    def answered_up_to(self) -> int:
        """All calls up to this number were answered."""
        return min((*self._in_flight, *self._lost, self._last + 1)) - 1

    @property
    def unanswered(self) -> frozenset[int]:
        """Calls that were made and may still be answered."""
        return frozenset((*self._in_flight, *self._lost))

    @property
    def is_too_far_ahead(self) -> bool:
        """Whether the next call must wait: after too many more, the server takes an unanswered call as answered."""
        return not self._lost and self._last - self.answered_up_to >= MAX_CALLS_AHEAD

    def take(self) -> int:
        """The number of the next call."""
        if self._lost:
            number = self._lost.pop()
        else:
            self._last = number = self._last + 1
        self._in_flight.add(number)
        return number

    def mark_answered(self, number: int) -> bool:
        """The reply of this call came; False if it was answered before."""
        is_first = number in self._in_flight
        self._in_flight.discard(number)
        return is_first

    def mark_pushed(self, number: int) -> bool:
        """A pushed job answers this call, which may be in flight, lost or not made yet; False if it was answered."""
        if number == self._last + 1 or number in self._lost:
            self._last = max(self._last, number)
            self._lost = [lost for lost in self._lost if lost != number]
            return True
        return self.mark_answered(number)

    def give_back(self, number: int) -> None:
        """The reply was lost; the next call uses this number again."""
        if self.mark_answered(number):
            self._lost.append(number)


@dataclass(slots=True, eq=False)
class Registration:
    """One name of a worker, and the lease calls made under it: they only change together."""

    name: str = ""
    calls: CallNumbers = field(default_factory=CallNumbers)
    is_lost: bool = True  #: the server does not know the name, so it takes no jobs


class Session:
    """Keeps one worker or stream registered, from `open` until its loops end."""

    def __init__(
        self,
        engine: Engine,
        health: ConnectionHealth,
        *,
        kind: str,
        lease: int,
        queues: list[str],
        about: dict[str, Any],
        held: Callable[[], Iterable[tuple[str, int, str]]],
        on_work: Callable[[], None],
        on_cancel: Callable[[str], None],
        on_lost: Callable[[], None] = lambda: None,
        on_push: Callable[[bytes], None] = lambda _message: None,
        prepare: Callable[[str], Awaitable[None]] | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """`kind` is the word for it in names and logs; `lease` is in ms; `held` lists (worker, call number, job id).

        `prepare` is awaited with each new name before anything uses it.
        """
        self._engine = engine
        self._health = health
        self._kind = kind
        self._lease = lease
        self._queues = queues
        self._about = about
        self._held = held
        self._on_work = on_work
        self._on_cancel = on_cancel
        self._on_lost = on_lost
        self._on_push = on_push
        self._prepare = prepare
        self._is_supervised = heartbeat is not None
        self.heartbeat = heartbeat or self._own_heartbeat()
        self.lease_check = LeaseCheck(engine, self._held_jobs)
        self.registration = Registration()
        self.is_stopping = False  #: then a lost name is not replaced
        self._lost = asyncio.Event()
        self._subscription: asyncio.Task[None] | None = None

    def _own_heartbeat(self) -> Heartbeat:
        loop = asyncio.get_running_loop()
        return OwnHeartbeat(
            self._engine,
            self._lease,
            self._health,
            on_lost=lambda name: _call_soon(loop, self.lose, name),
            on_cancel=lambda job_id: _call_soon(loop, self._on_cancel, job_id),
            on_work=self._on_work,
        )

    # Registering

    async def open(self) -> None:
        """Register the first name. A program without a server gets the error; a supervised worker waits for it."""
        while True:
            try:
                return await self._register()
            except Unavailable as error:
                if not self._is_supervised:
                    raise
                await self._pause_after(error)

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """Loops to run while the session is open."""
        return [*self.heartbeat.start(), self.lease_check.run(), self._replace_lost()]

    async def unsubscribe(self) -> None:
        if self._subscription is not None:
            await cancel_all([self._subscription])

    def lose(self, name: str) -> None:
        """The server no longer knows this name. It is replaced once, however often this is called."""
        registration = self.registration
        if name == registration.name and not registration.is_lost and not self.is_stopping:
            log.warning("%s %s was taken for dead; it goes on under a new name", self._kind, name)
            registration.is_lost = True
            self._on_lost()
            self._lost.set()

    async def _replace_lost(self) -> None:
        """The only loop that replaces a name, so that there is one name at a time."""
        while True:
            await self._lost.wait()
            try:
                await self._register()
            except Exception as error:
                if not isinstance(error, PenstockError):
                    log.exception("%s %s could not register under a new name", self._kind, self.registration.name)
                await self._pause_after(error)

    async def _pause_after(self, error: Exception) -> None:
        self._health.failed("start", error)
        await asyncio.sleep(random.uniform(0.5, 1.5))  # noqa: S311  (jitter)

    async def _register(self) -> None:
        """Register a new name, then switch everything to it in one step."""
        name = f"{'' if self._kind == 'worker' else f'{self._kind}-'}{_process_name()}-{secrets.token_hex(5)}"
        valid_until = time.monotonic() + self._lease / 1000
        await self._engine.register(name, self._lease, json.dumps(self._about), self._queues)
        if self._prepare is not None:
            await self._prepare(name)
        self._health.succeeded("start")
        self.registration = Registration(name, is_lost=False)
        self._lost.clear()
        self.heartbeat.use_name(name, self._about, self._queues, valid_until)
        self._on_work()
        self._subscribe(name)

    # Messages

    def _subscribe(self, name: str) -> None:
        """Subscribe to the channel of this name instead of the one before."""
        if self._subscription is not None:
            self._subscription.cancel()
        own_channel = self._engine.keys.channel(name)

        def receive(channel: str, message: bytes) -> None:
            if self.registration.name == name:
                if channel == own_channel:
                    self._receive(message)
                else:
                    self.heartbeat.receive(channel, message)

        subscriber = Subscriber(
            self._engine.script_client,
            [own_channel, *self.heartbeat.channels()],
            on_message=receive,
            on_connect=self._catch_up,
            on_lasting_error=self._check_unheard,
            health=self._health,
            ping_after=WORKER_PING_AFTER,
        )
        self._subscription = asyncio.create_task(subscriber.run())

    def _receive(self, message: bytes) -> None:
        if message.startswith(b"job\x1f"):
            self._on_push(message)
        elif message == b"work":
            self._on_work()
        elif message.startswith(b"cancel "):
            self._on_cancel(message.decode().removeprefix("cancel "))

    def _check_unheard(self, _: PenstockError) -> None:
        """Check with each attempt what a message would have said: the user may not subscribe."""
        self._on_work()
        self.heartbeat.rearm()

    async def _catch_up(self) -> None:
        """Do whatever a message may have asked for while the subscription was away.

        Another server may answer now, or one that lost its last writes.
        """
        self._on_work()
        self.lease_check.request()
        self.heartbeat.rearm()
        name = self.registration.name
        renewed = await self._engine.renew(self._lease, [name])
        if renewed.words == ["unknown"]:
            self.lose(name)
        for _, job_id in renewed.cancelling:
            self._on_cancel(job_id)

    def _held_jobs(self) -> HeldJobs:
        name, calls = self.registration.name, self.registration.calls
        jobs = ((job_id, number) for worker, number, job_id in self._held() if worker == name)
        return HeldJobs.of(name, calls.last, calls.unanswered, jobs)


def about(program: Program) -> dict[str, Any]:
    """The stored information about a worker: where it runs, its version of the code, and the tasks that it knows."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": version("penstock"),
        "code": code_version(program),
        "tasks": sorted(program.tasks),
        **({"keys": keys} if (keys := key_names(program.codecs)) else {}),
    }


def code_version(program: Program) -> str:
    """A hash of the files that define the tasks: it tells whether two workers run the same code."""
    modules = {task.function.__module__ for task in program.tasks.values()}
    files = sorted({str(getattr(sys.modules.get(name), "__file__", None) or "") for name in modules} - {""})
    digest = hashlib.sha256()
    for file in files:
        with suppress(OSError):
            digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:8]


async def cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _process_name() -> str:
    return f"{socket.gethostname()[:40]}-{os.getpid()}"


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> None:
    """Call this on a loop, from another thread."""
    with suppress(RuntimeError):  # the loop has been closed meanwhile
        loop.call_soon_threadsafe(call, *args)
