"""Whether anything is left to do."""

from collections.abc import Sequence

from penstock.engine.engine import Engine
from penstock.engine.read.lane_views import LaneViews
from penstock.engine.read.views import MAX_COUNTED_AT_ONCE, Views


async def is_idle(engine: Engine, views: Views, queues: Sequence[str]) -> bool:
    """Nothing is ready or running in these queues, and no held job will become ready by itself.

    Jobs that are paused or scheduled for later do not count.
    """
    await engine.promote()
    last = await views.last_event()
    paused = await views.queues()
    if await _busy(views, queues, paused):
        return False
    counts = await views.counts(_names_or_all(queues))
    if len(counts) > MAX_COUNTED_AT_ONCE and await views.last_event() != last:
        return False  # counted in pages: a job may have moved from a later page to an earlier one
    held = [name for name in counts if counts[name].get("held") and not paused.get(name)]
    if not held:
        return True
    # A job that has just got its slot in a lane is ready, and no longer held.
    return not await LaneViews(engine.script_client).opens(held) and not await _busy(views, queues, paused)


async def _busy(views: Views, queues: Sequence[str], paused: dict[str, bool]) -> bool:
    counts = await views.counts(_names_or_all(queues))
    names = [name for name in counts if not paused.get(name)]
    return any(counts[name].get(state) for name in names for state in ("ready", "running"))


def _names_or_all(queues: Sequence[str]) -> Sequence[str] | None:
    return None if list(queues) == ["*"] else queues
