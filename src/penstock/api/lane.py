"""Steering what runs while it runs: lanes and tasks by their names."""

from collections.abc import Callable

from penstock.client.client import Client
from penstock.engine.read.lane_views import LaneStatus, LaneViews
from penstock.errors import BadOption


class LaneControl:
    """A lane, or a lock, on a live queue."""

    def __init__(self, client: Callable[[], Client], stored: str) -> None:
        self._client = client
        self._stored = stored

    def __repr__(self) -> str:
        return f"<{self._stored}>"

    async def set(self, *, limit: int) -> None:
        """So many may run at once, whatever the code says, until `reset`; it counts at once."""
        await self._client().engine.tune(self._stored, limit=check_limit(limit))

    def set_sync(self, *, limit: int) -> None:
        self._client().engine.tune(self._stored, limit=check_limit(limit)).sync()

    async def reset(self) -> None:
        """What the code says counts again."""
        await self._client().engine.tune(self._stored, limit=-1)

    def reset_sync(self) -> None:
        self._client().engine.tune(self._stored, limit=-1).sync()

    async def pause(self) -> None:
        """Nothing of it starts; what runs goes on."""
        await self._client().engine.tune(self._stored, paused=True)

    def pause_sync(self) -> None:
        self._client().engine.tune(self._stored, paused=True).sync()

    async def resume(self) -> None:
        await self._client().engine.tune(self._stored, paused=False)

    def resume_sync(self) -> None:
        self._client().engine.tune(self._stored, paused=False).sync()

    async def status(self) -> LaneStatus:
        """Its limit, who has its slots, and how many wait."""
        return await LaneViews(self._client().engine.script_client).one(self._stored)

    def status_sync(self) -> LaneStatus:
        return LaneViews(self._client().engine.script_client).one_sync(self._stored)


def check_limit(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**6:
        raise BadOption(f"limit={value!r}: use a number from 0 to 1,000,000")
    return value
