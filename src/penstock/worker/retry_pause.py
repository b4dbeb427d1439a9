"""The pauses of a loop that tries again until it succeeds: each twice as long as the one before."""

import asyncio
import random
from typing import Final

from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.errors import PenstockError

FIRST_PAUSE: Final = 0.05  #: seconds
MAX_PAUSE: Final = 2.0


class RetryPause:
    """One loop's failures in a row, reported under its name to the health that all loops of this process share."""

    def __init__(
        self,
        health: ConnectionHealth | None = None,
        loop: str = "",
        *,
        first: float = FIRST_PAUSE,
        longest: float = MAX_PAUSE,
    ) -> None:
        """Without `health` nothing is reported, and the pauses do not depend on other loops."""
        self._health = health
        self._loop = loop
        self._first = self.next = first  #: seconds of the next pause
        self._longest = longest

    def succeeded(self) -> None:
        """Start again with the first pause."""
        self.next = self._first
        if self._health is not None:
            self._health.succeeded(self._loop)

    async def failed(self, error: Exception) -> None:
        """Report the failure and wait. Anything but a PenstockError is a fault of ours, not of the connection."""
        if self._health is not None:
            self._health.failed(self._loop, error if isinstance(error, PenstockError) else PenstockError(str(error)))
        await self.wait()

    async def wait(self) -> None:
        """Wait, without a report."""
        seconds, self.next = self.next, min(self.next * 2, self._longest)
        if self._health is not None:
            await self._health.pause(self._loop, seconds)
        else:
            await asyncio.sleep(random.uniform(seconds / 2, seconds))  # noqa: S311  (jitter)
