"""Messages from the scripts to a worker or a waiting client, pushed over sharded pub/sub.

A message is a hint and may be lost with a connection. So after every connect, the first one too, the owner is asked to
check for itself what it might have missed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from redis import exceptions as redis_errors

from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.engine.transport.error_policy import lasting
from penstock.engine.transport.roundtrip import pack_command
from penstock.engine.transport.script_client import ScriptClient
from penstock.errors import PenstockError
from penstock.server.connection import Connection

T = TypeVar("T")

PING_AFTER: Final = 5.0  #: seconds without a message after which the server is pinged
WORKER_PING_AFTER: Final = 15.0  #: the same for workers and supervisors, which also check by themselves
ANSWER_TIMEOUT: Final = 2.0  #: seconds for the answer to a ping or a subscription
_MIN_PAUSE: Final = 0.05  #: seconds between two attempts to connect; twice as long after each
_MAX_PAUSE: Final = 2.0
_BLOCKING_PAUSE: Final = 0.1  #: the same in blocking code


class Subscriber:
    """Listens on some channels of one namespace until it is cancelled, whatever happens to the connection."""

    def __init__(
        self,
        script_client: ScriptClient,
        channels: Sequence[str],
        *,
        on_message: Callable[[str, bytes], None],
        on_connect: Callable[[], Awaitable[None]],
        on_lasting_error: Callable[[PenstockError], None] | None = None,
        health: ConnectionHealth | None = None,
        ping_after: float = PING_AFTER,
    ) -> None:
        """`on_lasting_error` gets errors that do not pass by themselves, as a wrong password; `run` goes on."""
        self._script_client = script_client
        self._channels = channels
        self._on_message = on_message
        self._on_connect = on_connect
        self._on_lasting_error = on_lasting_error
        self._health = health or ConnectionHealth()
        self._ping_after = ping_after
        self.open = asyncio.Event()

    async def run(self) -> None:
        """Connect, listen, and start again after any error; the first error of an open connection is not reported."""
        pause = _MIN_PAUSE
        while True:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001  (a client can fail in any way; only being cancelled ends this)
                lasting_error = lasting(error, self._script_client.endpoint)
                if self._on_lasting_error is not None and lasting_error is not None:
                    self._on_lasting_error(lasting_error)
                if not self.open.is_set():
                    self._health.failed("subscriber", lasting_error or error)
                pause = _MIN_PAUSE if self.open.is_set() else min(pause * 2, _MAX_PAUSE)
                self.open.clear()
                await self._script_client.endpoint.forget()
                await self._health.pause("subscriber", pause)

    async def _listen(self) -> None:
        client: Any = await self._script_client.endpoint.client()
        subscription = await client.connection_pool.open(lambda connection: _Subscription(connection, self._on_message))
        try:
            subscription.send(pack_command(("SSUBSCRIBE", *self._channels)))
            while subscription.channels < len(self._channels):
                await subscription.wait(ANSWER_TIMEOUT)
            await self._on_connect()
            self.open.set()
            self._health.succeeded("subscriber")
            while True:
                await self._check_alive(subscription)
        finally:
            subscription.close()

    async def _check_alive(self, subscription: "_Subscription") -> None:
        """Wait for a message; after a silence, a ping must be answered. Raises if the connection has ended."""
        try:
            await subscription.wait(self._ping_after)
        except TimeoutError:
            subscription.send(pack_command(("PING",)))
            await subscription.wait(ANSWER_TIMEOUT)


class _Subscription(Connection):
    """A connection that is subscribed to channels: messages are passed on in the step in which they arrive."""

    def __init__(self, connection: Any, on_message: Callable[[str, bytes], None]) -> None:
        super().__init__(connection)
        self._on_message = on_message
        self._activity = asyncio.Event()
        self._error: Exception | None = None
        self.channels = 0  #: that it is subscribed to so far

    def answered(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            raise answer
        match answer:
            case [b"smessage", channel, message]:
                self._on_message(channel.decode(), message)
            case [b"ssubscribe", *_]:
                self.channels += 1
            case [b"sunsubscribe", *_]:
                raise ConnectionError("the slot moved to another node")
        self._activity.set()  # after the message was passed on

    def closed(self, error: Exception) -> None:
        self._error = error
        self._activity.set()

    async def wait(self, timeout: float) -> None:
        """Wait until anything has arrived since the last time, or raise TimeoutError, or why the connection ended."""
        async with asyncio.timeout(timeout):
            await self._activity.wait()
        self._activity.clear()
        if self._error is not None:
            raise self._error


class BlockingSubscriber:
    """Listens on some channels of one namespace from blocking code, on a connection of its own."""

    def __init__(self, script_client: ScriptClient, channels: Sequence[str]) -> None:
        self._endpoint = script_client.endpoint
        self._channels = channels

    def wait_until(self, check: Callable[[], T | None], timeout: float | None) -> T:
        """Call `check` after every connect and every message until it gives an answer; TimeoutError if none comes."""
        due = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return self._listen(check, due)
            except (redis_errors.RedisError, OSError, PenstockError) as error:
                if (lasting_error := lasting(error, self._endpoint)) is not None:
                    raise lasting_error from None
                self._endpoint.forget_sync()
                if due is not None and time.monotonic() > due:
                    raise TimeoutError from None
                time.sleep(_BLOCKING_PAUSE)

    def _listen(self, check: Callable[[], T | None], due: float | None) -> T:
        client: Any = self._endpoint.client_sync(None if due is None else max(due - time.monotonic(), 0))
        subscription = client.pubsub()
        try:
            subscription.ssubscribe(*self._channels)
            while (answer := check()) is None:
                _wait_for_message(subscription, due)
            return answer
        finally:
            subscription.close()


def _wait_for_message(subscription: Any, due: float | None) -> None:
    """Block until a message comes; after some quiet seconds a ping must be answered."""
    is_pinged = False
    while True:
        quiet = ANSWER_TIMEOUT if is_pinged else PING_AFTER
        timeout = quiet if due is None else min(quiet, due - time.monotonic())
        if timeout <= 0:
            raise TimeoutError
        message = subscription.get_message(timeout=timeout)
        if message is not None and message["type"] == "smessage":
            return
        if message is None and is_pinged and timeout == quiet:
            raise redis_errors.TimeoutError("the connection on which a message is awaited does not answer")
        if message is None:
            subscription.ping()
        is_pinged = message is None
