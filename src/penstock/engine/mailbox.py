"""Mail: what the scripts tell a worker or a waiting client, pushed over sharded pub/sub.

Letters are hints and may be lost with a connection. So after every connect, the first one too, the owner is asked to
look again for what it might have missed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from penstock.engine.link import Link
from penstock.engine.reach import Reach

QUIET: Final = 5.0  #: seconds without a letter after which the server is pinged
QUIET_WORKER: Final = 15.0  #: the same for a worker and its supervisor, who look by themselves anyway
_ANSWER: Final = 5.0  #: seconds that the answer may take
_SLOWEST: Final = 2.0  #: seconds between two tries to connect, at most


class Mailbox:
    """Listens on some channels of one namespace until it is cancelled, whatever happens to the connection."""

    def __init__(
        self,
        link: Link,
        channels: Sequence[str],
        *,
        letter: Callable[[str, bytes], None],
        opened: Callable[[], Awaitable[None]],
        reach: Reach | None = None,
        quiet: float = QUIET,
    ) -> None:
        self._link = link
        self._channels = channels
        self._letter = letter
        self._opened = opened
        self._reach = reach or Reach()
        self._quiet = quiet
        self.open = asyncio.Event()

    async def run(self) -> None:
        """Connect, listen, and begin again after any error; a connection that is replaced at once is no news."""
        pause = 0.05
        while True:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001  (a client can fail in any way; only being cancelled ends this)
                if not self.open.is_set():
                    self._reach.lost("mailbox", error)
                pause = 0.05 if self.open.is_set() else min(pause * 2, _SLOWEST)
                self.open.clear()
                await self._link.endpoint.forget()
                await self._reach.pause("mailbox", pause)

    async def _listen(self) -> None:
        client: Any = await self._link.endpoint.client()
        async with client.pubsub() as listener:
            await listener.ssubscribe(*self._channels)
            for _ in self._channels:
                await self._next(listener)
            await self._opened()
            self.open.set()
            self._reach.back("mailbox")
            while True:
                await self._next(listener)

    async def _next(self, listener: Any) -> None:
        """One message; after a silence a ping must be answered."""
        message = await listener.get_message(timeout=self._quiet)
        if message is None:
            await listener.ping()
            message = await listener.get_message(timeout=_ANSWER)
            if message is None:
                raise TimeoutError("no answer to a ping")
        if message["type"] == "smessage":
            self._letter(message["channel"].decode(), message["data"])
        elif message["type"] == "sunsubscribe":
            raise ConnectionError("the slot moved to another node")
