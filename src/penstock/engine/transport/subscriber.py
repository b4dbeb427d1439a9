"""Mail: what the scripts tell a worker or a waiting client, pushed over sharded pub/sub.

Letters are hints and may be lost with a connection. So after every connect, the first one too, the owner is asked to
look again for what it might have missed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from redis import exceptions as redis_errors

from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.engine.transport.retry_policy import lasting
from penstock.engine.transport.roundtrip import packed
from penstock.engine.transport.script_client import ScriptClient
from penstock.errors import PenstockError
from penstock.server.connection import Connection

T = TypeVar("T")

QUIET: Final = 5.0  #: seconds without a letter after which the server is pinged
QUIET_WORKER: Final = 15.0  #: the same for a worker and its supervisor, who look by themselves anyway
ANSWER: Final = 2.0  #: seconds that the answer may take
_BLOCKING_PAUSE: Final = 0.1  #: seconds before blocking code connects again
_SLOWEST: Final = 2.0  #: seconds between two tries to connect, at most


class Subscriber:
    """Listens on some channels of one namespace until it is cancelled, whatever happens to the connection."""

    def __init__(
        self,
        script_client: ScriptClient,
        channels: Sequence[str],
        *,
        letter: Callable[[str, bytes], None],
        opened: Callable[[], Awaitable[None]],
        failed: Callable[[PenstockError], None] | None = None,
        health: ConnectionHealth | None = None,
        quiet: float = QUIET,
    ) -> None:
        """`failed` is told of what does not pass by itself, as a wrong password; it is tried again nevertheless."""
        self._script_client = script_client
        self._channels = channels
        self._letter = letter
        self._opened = opened
        self._failed = failed
        self._health = health or ConnectionHealth()
        self._quiet = quiet
        self.open = asyncio.Event()

    async def run(self) -> None:
        """Connect, listen, and begin again after any error; a connection that is replaced at once is no news."""
        pause = 0.05
        while True:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001  (a client can fail in any way; only being cancelled ends this)
                hopeless = lasting(error, self._script_client.endpoint)
                if self._failed is not None and hopeless is not None:
                    self._failed(hopeless)
                if not self.open.is_set():
                    self._health.lost("mailbox", hopeless or error)
                pause = 0.05 if self.open.is_set() else min(pause * 2, _SLOWEST)
                self.open.clear()
                await self._script_client.endpoint.forget()
                await self._health.pause("mailbox", pause)

    async def _listen(self) -> None:
        client: Any = await self._script_client.endpoint.client()
        letters = await client.connection_pool.open(lambda connection: _Letters(connection, self._letter))
        try:
            letters.send(packed(("SSUBSCRIBE", *self._channels)))
            while letters.subscribed < len(self._channels):
                await letters.something(ANSWER)
            await self._opened()
            self.open.set()
            self._health.back("mailbox")
            while True:
                await self._next(letters)
        finally:
            letters.close()

    async def _next(self, letters: "_Letters") -> None:
        """Until there is a silence, after which a ping must be answered; an error if the connection ends."""
        try:
            await letters.something(self._quiet)
        except TimeoutError:
            letters.send(packed(("PING",)))
            await letters.something(ANSWER)


class _Letters(Connection):
    """A connection that is subscribed to channels: letters are given to their reader in the step in which they come."""

    def __init__(self, connection: Any, letter: Callable[[str, bytes], None]) -> None:
        super().__init__(connection)
        self._letter = letter
        self._news = asyncio.Event()
        self._error: Exception | None = None
        self.subscribed = 0

    def received(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            raise answer
        match answer:
            case [b"smessage", channel, text]:
                self._letter(channel.decode(), text)
            case [b"ssubscribe", *_]:
                self.subscribed += 1
            case [b"sunsubscribe", *_]:
                raise ConnectionError("the slot moved to another node")
        self._news.set()  # after the letter: what it brought comes first

    def ended(self, error: Exception) -> None:
        self._error = error
        self._news.set()

    async def something(self, within: float) -> None:
        """Until anything has come since the last time; TimeoutError if nothing does."""
        async with asyncio.timeout(within):
            await self._news.wait()
        self._news.clear()
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
                if (hopeless := lasting(error, self._endpoint)) is not None:
                    raise hopeless from None
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
        quiet = ANSWER if is_pinged else QUIET
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
