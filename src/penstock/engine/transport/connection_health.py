"""Tracks whether the server can be used; logs each change once, however many loops notice it."""

import asyncio
import logging
import random
import time
from contextlib import suppress
from typing import Final

from penstock.errors import CannotConnect, PenstockError, Unavailable

log = logging.getLogger("penstock")

MAX_WAIT: Final = 30.0  #: seconds that a loop waits while another one tries


class ConnectionHealth:
    """Shared by the loops of one process; each reports under its name whether it could do its work."""

    def __init__(self) -> None:
        self._errors: dict[str, str] = {}  #: loop → kind of its last error
        self._without_server: dict[str, None] = {}  #: the loops that have no server, in the order in which they lost it
        self._broken_since = 0.0
        self._recovered = asyncio.Event()
        self.failures = 0  #: of all loops together

    @property
    def is_ok(self) -> bool:
        return not self._errors

    def failed(self, loop: str, error: BaseException) -> None:
        """The loop failed and will try again."""
        kind = type(error).__name__
        self.failures += 1
        if not self._errors:
            self._broken_since = time.monotonic()
        if kind not in self._errors.values():
            log.warning("the server cannot be used (%s); trying again until it can", error)
        self._errors[loop] = kind
        if isinstance(error, Unavailable) and not isinstance(error, CannotConnect):
            self._without_server[loop] = None
            self._recovered.clear()
        elif isinstance(error, PenstockError):
            self._without_server.pop(loop, None)
            self._recovered.set()  # there is a server: the other loops need not wait for this one
        else:
            self._without_server[loop] = None
            self._recovered.clear()

    async def pause(self, loop: str, seconds: float) -> None:
        """Wait before the loop tries again. The first that lost the server tries for all; the others wait for it.

        A loop that failed for another reason tries for itself.
        """
        if loop not in self._without_server or next(iter(self._without_server)) == loop:
            await asyncio.sleep(random.uniform(seconds / 2, seconds))  # noqa: S311  (jitter)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(MAX_WAIT):
                    await self._recovered.wait()

    def succeeded(self, loop: str) -> None:
        """The loop worked again."""
        if not self._errors or not self._errors.pop(loop, ""):
            return
        self._without_server.pop(loop, None)
        self._recovered.set()
        if not self._errors:
            log.warning("the server can be used again, after %.1f s", time.monotonic() - self._broken_since)
