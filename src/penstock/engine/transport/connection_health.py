"""Whether the server can be reached, said once per change, however many loops find out."""

import asyncio
import logging
import random
import time
from contextlib import suppress
from typing import Final

from penstock.errors import CannotConnect, PenstockError, Unavailable

log = logging.getLogger("penstock")

LONGEST: Final = 30.0  #: seconds that a loop leaves it to another to find the server


class ConnectionHealth:
    """Shared by the loops of one process; each says how it fares."""

    def __init__(self) -> None:
        self._lost: dict[str, str] = {}  #: loop → kind of its last error
        self._away: dict[str, None] = {}  #: those of them for which there is no server, in the order of their loss
        self._since = 0.0
        self._found = asyncio.Event()
        self.failures = 0  #: how often one of them could not do its work

    @property
    def well(self) -> bool:
        return not self._lost

    def lost(self, loop: str, error: BaseException) -> None:
        """It could not do its work, and tries again."""
        kind = type(error).__name__
        self.failures += 1
        if not self._lost:
            self._since = time.monotonic()
        if kind not in self._lost.values():
            log.warning("the server cannot be used (%s); trying again until it can", error)
        self._lost[loop] = kind
        if isinstance(error, PenstockError) and (
            isinstance(error, CannotConnect) or not isinstance(error, Unavailable)
        ):
            self._away.pop(loop, None)
            self._found.set()  # there is one: nobody waits for this loop any more
        else:
            self._away[loop] = None
            self._found.clear()

    async def pause(self, loop: str, seconds: float) -> None:
        """Before a loop tries again: the one that lost the server first tries for all, the others wait until it could.

        One that failed for another reason fails alone, and nobody waits for it.
        """
        if loop not in self._away or next(iter(self._away)) == loop:
            await asyncio.sleep(random.uniform(seconds / 2, seconds))  # noqa: S311  (jitter)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST):
                    await self._found.wait()

    def back(self, loop: str) -> None:
        """It could."""
        if not self._lost or not self._lost.pop(loop, ""):
            return
        self._away.pop(loop, None)
        self._found.set()
        if not self._lost:
            log.warning("the server can be used again, after %.1f s", time.monotonic() - self._since)
