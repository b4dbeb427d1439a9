"""A batch's progress as one line: live on a terminal, now and then in a log."""

import shutil
import time
from collections import deque
from typing import Final, TextIO

from penstock.model.batch_state import BatchStatus
from penstock.model.printable import escaped

TERMINAL_INTERVAL: Final = 0.25  #: seconds between two updates
LOG_INTERVAL: Final = 10.0
_RATE_WINDOW: Final = 20.0  #: seconds over which the rate is measured
_MAX_BAR: Final = 30  #: characters


class Progress:
    """Writes a line for each update; on a terminal it replaces the one before."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._samples: deque[tuple[float, int]] = deque()
        self.live = stream.isatty()

    @property
    def pause(self) -> float:
        """Seconds until the next update."""
        return TERMINAL_INTERVAL if self.live else LOG_INTERVAL

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
        """Members per second in the last seconds."""
        now = time.monotonic()
        self._samples.append((now, finished))
        while len(self._samples) > 2 and now - self._samples[0][0] > _RATE_WINDOW:
            self._samples.popleft()
        since, before = self._samples[0]
        return (finished - before) / (now - since) if now > since else 0.0


def line(status: BatchStatus, running: int, rate: float) -> str:
    """Done, running, failed, rate, time left."""
    parts = [f"{escaped(status.name or status.id)}: {status.done:,} of {status.total:,} done", f"{running:,} running"]
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
    """A bar as wide as there is room for; empty if there is hardly any."""
    size = min(room, _MAX_BAR)
    if size < 8 or not status.total:
        return ""
    full = size * (status.total - status.pending) // status.total
    return f"[{'#' * full}{'.' * (size - full)}] "
