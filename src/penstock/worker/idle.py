"""Whether there is anything left to do."""

from collections.abc import Sequence

from penstock.engine.engine import Engine
from penstock.engine.lane_views import LaneViews
from penstock.engine.views import Views


async def is_idle(engine: Engine, views: Views, queues: Sequence[str]) -> bool:
    """Nothing is ready or running in these queues, and nothing is held that will go on by itself.

    What is paused or scheduled for later does not count.
    """
    await engine.promote()
    paused = await views.queues()
    if await _busy(views, queues, paused):
        return False
    counts = await views.counts()
    names = counts if list(queues) == ["*"] else queues
    held = [name for name in names if counts.get(name, {}).get("held") and not paused.get(name)]
    if not held:
        return True
    # What a lane has just let go on is ready, and no longer held.
    return not await LaneViews(engine.link).opens(held) and not await _busy(views, queues, paused)


async def _busy(views: Views, queues: Sequence[str], paused: dict[str, bool]) -> bool:
    counts = await views.counts()
    names = [name for name in (counts if list(queues) == ["*"] else queues) if not paused.get(name)]
    return any(counts.get(name, {}).get(state) for name in names for state in ("ready", "running"))
