"""Whether there is anything left to do."""

from collections.abc import Sequence

from penstock.engine.engine import Engine
from penstock.engine.views import Views


async def is_idle(engine: Engine, views: Views, queues: Sequence[str]) -> bool:
    """Nothing is ready or running in these queues; what is paused or scheduled for later does not count."""
    await engine.promote()
    counts, paused = await views.counts(), await views.queues()
    names = [name for name in (counts if list(queues) == ["*"] else queues) if not paused.get(name)]
    return not any(counts.get(name, {}).get(state) for name in names for state in ("ready", "running"))
