"""The clock of a test: it stands still until the test moves it."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from penstock.errors import BadOption
from penstock.model.durations import Duration, instant, milliseconds


class Clock:
    """The time that the engine uses instead of the server's, in ms.

    It stands still, so that on a slow machine no retry is due too early. A move also adds the real time that has
    passed: a job that the tested code delayed with `datetime.now()` is due after the same advance. It reads
    `time.time()`, so it follows libraries that replace that.
    """

    def __init__(self, moved: Callable[[], None] = lambda: None) -> None:
        """`moved` is called after every move."""
        self._on_move = moved
        self._offset = 0  #: ms that it is ahead of the real time while it runs
        self._frozen_at: int | None = _real_time()  #: None while it runs

    def __call__(self) -> int:
        return _real_time() + self._offset if self._frozen_at is None else self._frozen_at

    def __repr__(self) -> str:
        return f"<Clock {self.now().isoformat(sep=' ', timespec='milliseconds')}>"

    def now(self) -> datetime:
        return datetime.fromtimestamp(self() / 1000, UTC)

    def advance(self, by: Duration) -> None:
        """Move the clock in one step, as if no worker ran meanwhile: jobs due by then run when a worker does."""
        self._offset += milliseconds(by, "advance")
        self._freeze_at(max(self() + milliseconds(by), _real_time() + self._offset))
        self._on_move()

    def move_to(self, at: datetime) -> None:
        """Move to this time, which must not be in the past."""
        to = instant(at)
        if to < self():
            raise BadOption(f"the clock cannot go back from {self.now().isoformat()} to {at.isoformat()}")
        self._offset = to - _real_time()
        self._freeze_at(to)
        self._on_move()

    def skip_to(self, now: int) -> None:
        """Move to exactly this time in ms, without adding the real time that has passed."""
        if now > self():
            self._offset += now - self()
            self._freeze_at(now)
            self._on_move()

    def tick(self) -> None:
        """Let the clock run from here on, for a worker in the background."""
        self._offset = self() - _real_time()
        self._frozen_at = None

    def freeze(self) -> None:
        """Stop the clock again."""
        self._frozen_at = self()

    @property
    def is_ticking(self) -> bool:
        return self._frozen_at is None

    def _freeze_at(self, now: int) -> None:
        if self._frozen_at is not None:
            self._frozen_at = now


def _real_time() -> int:
    return int(time.time() * 1000)
