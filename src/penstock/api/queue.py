"""A queue on a live system: its status, its limits, and its jobs by hand."""

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.api.lane import check_limit
from penstock.api.program import Program
from penstock.api.selection import ProgressCallback, Selection, choose
from penstock.engine.transport.blocking import blocking
from penstock.errors import BadOption

if TYPE_CHECKING:
    from penstock.worker.queue_stream import QueueStream


class QueueStatus(NamedTuple):
    """A queue at one moment."""

    name: str
    paused: bool
    limit: int | None  #: how many of its jobs may run at once
    counts: dict[str, int]  #: state → how many jobs
    max_size: int | None = None  #: how many may wait in it


class QueueControl:
    """A queue on a live system."""

    def __init__(self, program: Program, name: str) -> None:
        self._program = program
        self._client = program.client
        self.name = name

    def __repr__(self) -> str:
        return f"<queue {self.name}>"

    async def set(self, *, limit: int | None = None, max_size: int | None = None) -> None:
        """At most `limit` of its jobs run at once; with `max_size` waiting, enqueueing raises QueueFull."""
        await self._client().engine.cap(self.name, *_caps(limit, max_size))

    set_sync = blocking(set)  # noqa: A003  (the method above)

    async def reset(self) -> None:
        """Remove both limits."""
        await self._client().engine.cap(self.name, -1, -1)

    reset_sync = blocking(reset)

    async def pause(self) -> None:
        """Start none of its jobs until `resume`; running ones continue."""
        await self._client().engine.pause(self.name)

    pause_sync = blocking(pause)

    async def resume(self) -> None:
        await self._client().engine.resume(self.name)

    resume_sync = blocking(resume)

    async def status(self) -> QueueStatus:
        views = self._client().views
        setting, counts = await views.queue_setting(self.name), await views.counts([self.name])
        return QueueStatus(self.name, setting.paused, setting.limit, counts[self.name], setting.max_size)

    status_sync = blocking(status)

    async def purge(self, on_progress: ProgressCallback | None = None) -> int:
        """Cancel all jobs that wait in it (reason `purged`) and return how many; running ones continue."""
        cancelled = 0
        for state in ("scheduled", "held", "ready"):
            cancelled += await Selection(self._client, choose(queue=self.name, state=state)).cancel(
                "purged", on_progress
            )
        return cancelled

    def purge_sync(self) -> int:
        """The same from blocking code."""
        return self._client().run(self.purge())

    def dead(self, *, limit: int | None = None, **which: Any) -> Selection:
        """Its dead jobs, the latest first: `async for` gives all, `await` a list of the first hundred or `limit`.

        Filters: `task`, `tag`, `error` (a part of it), `group` (its fingerprint), `older_than`, `newer_than`.
        """
        return Selection(self._client, choose(**{**which, "queue": self.name, "state": "dead"}), limit=limit)

    async def retry_dead(self, **which: Any) -> int:
        """Run its dead jobs, or those that match, again with a fresh budget; returns how many."""
        return await self.dead(**which).retry()

    def retry_dead_sync(self, **which: Any) -> int:
        """The same from blocking code."""
        return self._client().run(self.retry_dead(**which))

    def stream(self, limit: int = 1) -> "QueueStream":
        """Take jobs by hand: `async with queue.stream(limit=10) as leases: async for lease in leases: …`.

        At most `limit` jobs are unsettled at a time; leaving the block gives back jobs that were not begun.
        """
        return self._program.open_stream(self._program, self.name, limit)


def _caps(limit: int | None, max_size: int | None) -> tuple[int | None, int | None]:
    if limit is None and max_size is None:
        raise BadOption("nothing to set: give limit= or max_size=; reset() lifts both")
    checked = None if limit is None else check_limit(limit)
    return checked, None if max_size is None else check_size(max_size)


def check_size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**9:
        raise BadOption(f"max_size={value!r}: use a number from 0 to 1,000,000,000")
    return value
