"""The time of a test: it stands still until somebody moves it."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from penstock.errors import BadOption
from penstock.model.durations import Duration, instant, milliseconds


class Clock:
    """What the engine takes for the server's time, in ms.

    It stands still, so that a slow machine makes no retry due too early. When it is moved it also makes up for the time
    that has passed meanwhile: what the code under test put off with `datetime.now()` is due after the same advance. It
    reads `time.time()`, so it follows those who replace that.
    """

    def __init__(self, moved: Callable[[], None] = lambda: None) -> None:
        """`moved` is called after every move."""
        self._moved = moved
        self._ahead = 0  #: ms that it is before the clock on the wall, when it moves
        self._still: int | None = _wall()  #: where it stands; None while it runs

    def __call__(self) -> int:
        return _wall() + self._ahead if self._still is None else self._still

    def __repr__(self) -> str:
        return f"<Clock {self.now().isoformat(sep=' ', timespec='milliseconds')}>"

    def now(self) -> datetime:
        return datetime.fromtimestamp(self() / 1000, UTC)

    def advance(self, by: Duration) -> None:
        """Let so much time pass, in one leap, as if no worker had been there: what is due then runs when one is."""
        self._ahead += milliseconds(by, "advance")
        self._stand_at(max(self() + milliseconds(by), _wall() + self._ahead))
        self._moved()

    def move_to(self, at: datetime) -> None:
        """To this time, which must not be in the past."""
        to = instant(at)
        if to < self():
            raise BadOption(f"the clock cannot go back from {self.now().isoformat()} to {at.isoformat()}")
        self._ahead = to - _wall()
        self._stand_at(to)
        self._moved()

    def skip_to(self, now: int) -> None:
        """To this time in ms, and not a moment further."""
        if now > self():
            self._ahead += now - self()
            self._stand_at(now)
            self._moved()

    def tick(self) -> None:
        """Let it run by itself from here on, for a worker in the background."""
        self._ahead = self() - _wall()
        self._still = None

    def freeze(self) -> None:
        """Let it stand still again."""
        self._still = self()

    @property
    def is_ticking(self) -> bool:
        return self._still is None

    def _stand_at(self, now: int) -> None:
        if self._still is not None:
            self._still = now


def _wall() -> int:
    return int(time.time() * 1000)
