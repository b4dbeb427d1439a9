"""How far a batch has come, as one line: live on a terminal, now and then in a log."""

import shutil
import time
from collections import deque
from typing import Final, TextIO

from penstock.model.batch_state import BatchStatus

LIVE: Final = 0.25  #: seconds between two looks on a terminal
PLAIN: Final = 10.0  #: and where the lines are kept
_WINDOW: Final = 20.0  #: seconds over which the rate is measured
_WIDEST: Final = 30


class Progress:
    """Writes a line at each look; on a terminal it takes the place of the one before."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._looks: deque[tuple[float, int]] = deque()
        self.live = stream.isatty()

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return LIVE if self.live else PLAIN

    def show(self, status: BatchStatus, running: int) -> None:
        rate = self._rate(status.total - status.pending)
        text = line(status, running, rate)
        if not self.live:
            self._stream.write(text + "\n")
        else:
            columns = shutil.get_terminal_size().columns
            end = "\n" if status.state == "ended" else ""
            self._stream.write(f"\r\x1b[2K{bar(status, columns - len(text) - 3)}{text}{end}"[: columns + 8])
        self._stream.flush()

    def _rate(self, finished: int) -> float:
        """Members per second, of late."""
        now = time.monotonic()
        self._looks.append((now, finished))
        while len(self._looks) > 2 and now - self._looks[0][0] > _WINDOW:
            self._looks.popleft()
        since, before = self._looks[0]
        return (finished - before) / (now - since) if now > since else 0.0


def line(status: BatchStatus, running: int, rate: float) -> str:
    """Done, running, failed, rate, time left."""
    parts = [f"{status.name or status.id}: {status.done:,} of {status.total:,} done", f"{running:,} running"]
    parts.append(f"{status.dead:,} failed")
    if status.cancelled:
        parts.append(f"{status.cancelled:,} cancelled")
    if status.state == "ended":
        return ", ".join([*parts, "ended"])
    parts.append(f"{rate:,.1f}/s")
    if status.open:
        parts.append("still open")
    elif rate > 0:
        parts.append(f"{left(status.pending / rate)} left")
    return ", ".join(parts)


def left(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def bar(status: BatchStatus, room: int) -> str:
    """As wide as there is room, nothing if there is hardly any."""
    size = min(room, _WIDEST)
    if size < 8 or not status.total:
        return ""
    full = size * (status.total - status.pending) // status.total
    return f"[{'#' * full}{'.' * (size - full)}] "
