"""Whether the server can be reached, said once per change, however many loops find out."""

import logging
import time

log = logging.getLogger("penstock")


class Reach:
    """Shared by the loops of one process; each says how it fares."""

    def __init__(self) -> None:
        self._lost: dict[str, str] = {}  #: loop → kind of its last error
        self._since = 0.0

    @property
    def well(self) -> bool:
        return not self._lost

    def lost(self, loop: str, error: BaseException) -> None:
        """It could not do its work, and tries again."""
        kind = type(error).__name__
        if not self._lost:
            self._since = time.monotonic()
        if kind not in self._lost.values():
            log.warning("the server cannot be used (%s); trying again until it can", error)
        self._lost[loop] = kind

    def back(self, loop: str) -> None:
        """It could."""
        if self._lost and self._lost.pop(loop, "") and not self._lost:
            log.warning("the server can be used again, after %.1f s", time.monotonic() - self._since)
