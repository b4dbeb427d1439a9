"""Lanes and locks on a live system."""

from collections.abc import Callable

from penstock.client.client import Client
from penstock.engine.read.lane_views import LaneStatus, LaneViews
from penstock.engine.transport.blocking import blocking
from penstock.errors import BadOption


class LaneControl:
    """A lane, or a lock, on a live queue."""

    def __init__(self, client: Callable[[], Client], stored: str) -> None:
        self._client = client
        self._stored = stored

    def __repr__(self) -> str:
        return f"<{self._stored}>"

    async def set(self, *, limit: int) -> None:
        """At most `limit` jobs of it run at once, whatever the code says, until `reset`."""
        await self._client().engine.tune(self._stored, limit=check_limit(limit))

    set_sync = blocking(set)  # noqa: A003  (the method above)

    async def reset(self) -> None:
        """Return to the limit that the code says."""
        await self._client().engine.tune(self._stored, limit=-1)

    reset_sync = blocking(reset)

    async def pause(self) -> None:
        """Start none of its jobs until `resume`; running ones continue."""
        await self._client().engine.tune(self._stored, paused=True)

    pause_sync = blocking(pause)

    async def resume(self) -> None:
        await self._client().engine.tune(self._stored, paused=False)

    resume_sync = blocking(resume)

    async def status(self) -> LaneStatus:
        """Its limit, the jobs that hold its slots, and how many wait."""
        return await LaneViews(self._client().engine.script_client).lane(self._stored)

    status_sync = blocking(status)


def check_limit(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**6:
        raise BadOption(f"limit={value!r}: use a number from 0 to 1,000,000")
    return value
