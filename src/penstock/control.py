"""Steering what runs while it runs: lanes and queues by their names."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.engine.lane_views import LaneStatus, LaneViews
from penstock.errors import BadOption
from penstock.hub import Hub


class LaneControl:
    """A lane, or a lock, on a live queue."""

    def __init__(self, hub: Callable[[], Hub], stored: str) -> None:
        self._hub = hub
        self._stored = stored

    def __repr__(self) -> str:
        return f"<{self._stored}>"

    async def set(self, *, limit: int) -> None:
        """So many may run at once, whatever the code says, until `reset`; it counts at once."""
        await self._hub().engine.tune(self._stored, limit=check_limit(limit))

    def set_sync(self, *, limit: int) -> None:
        self._hub().engine.tune(self._stored, limit=check_limit(limit)).sync()

    async def reset(self) -> None:
        """What the code says counts again."""
        await self._hub().engine.tune(self._stored, limit=-1)

    def reset_sync(self) -> None:
        self._hub().engine.tune(self._stored, limit=-1).sync()

    async def pause(self) -> None:
        """Nothing of it starts; what runs goes on."""
        await self._hub().engine.tune(self._stored, paused=True)

    def pause_sync(self) -> None:
        self._hub().engine.tune(self._stored, paused=True).sync()

    async def resume(self) -> None:
        await self._hub().engine.tune(self._stored, paused=False)

    def resume_sync(self) -> None:
        self._hub().engine.tune(self._stored, paused=False).sync()

    async def status(self) -> LaneStatus:
        """Its limit, who has its slots, and how many wait."""
        return await LaneViews(self._hub().engine.link).one(self._stored)

    def status_sync(self) -> LaneStatus:
        return LaneViews(self._hub().engine.link).one_sync(self._stored)


class QueueStatus(NamedTuple):
    """A queue at one moment."""

    name: str
    paused: bool
    limit: int | None
    counts: dict[str, int]  #: state → how many jobs


class QueueControl:
    """A queue on a live system."""

    def __init__(self, hub: Callable[[], Hub], name: str) -> None:
        self._hub = hub
        self.name = name

    def __repr__(self) -> str:
        return f"<queue {self.name}>"

    async def set(self, *, limit: int) -> None:
        """At most so many of its jobs run at once."""
        await self._hub().engine.cap(self.name, check_limit(limit))

    def set_sync(self, *, limit: int) -> None:
        self._hub().engine.cap(self.name, check_limit(limit)).sync()

    async def reset(self) -> None:
        """As many as there are workers for."""
        await self._hub().engine.cap(self.name, -1)

    def reset_sync(self) -> None:
        self._hub().engine.cap(self.name, -1).sync()

    async def pause(self) -> None:
        """No more of its jobs are started; those that run go on."""
        await self._hub().engine.pause(self.name)

    def pause_sync(self) -> None:
        self._hub().engine.pause(self.name).sync()

    async def resume(self) -> None:
        await self._hub().engine.resume(self.name)

    def resume_sync(self) -> None:
        self._hub().engine.resume(self.name).sync()

    async def status(self) -> QueueStatus:
        views = self._hub().views
        settings, counts = await views.queue_settings(), await views.counts()
        paused, limit = settings.get(self.name, (False, None))
        return QueueStatus(self.name, paused, limit, counts.get(self.name, {}))

    def status_sync(self) -> QueueStatus:
        return self._hub().run(self.status())


def check_limit(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**6:
        raise BadOption(f"limit={value!r}: use a number from 0 to 1,000,000")
    return value
