"""Repairs a namespace: a whole pass of `reconcile`, page by page, also while jobs run.

The records are the truth. First entries that do not belong are removed from the indexes, then the entries that each
record needs are added, and at last the counts are set to what was counted, if no job moved meanwhile.
"""

from collections import Counter
from typing import Final

from penstock.engine.engine import Engine
from penstock.engine.keys import SEPARATOR
from penstock.engine.read.views import Views

_INDEXES: Final = (
    "ready",
    "held",
    "holders",
    "scheduled",
    "leases",
    "dead",
    "finished",
    "tombs",
    "timers",
    "cancels",
    "unique",
    "waiting",
    "ticks",
    "keepers",
    "roster",
    "deaths",
)
_REST: Final = (
    "workers",
    "idle",
    "calls",
    "nodes",
    "lives",
    "skills",
    "meta",
    "crons",
    "jobs",
    "batches",
    "chores",
    "lanes",
    "openings",
    "payloads",
    "results",
    "attempts",
    "logs",
    "limits",
)
_QUEUES: Final = ("heads", "queues")  #: what can be leased follows from `ready` and the counts
_MAX_COUNTS: Final = 5  #: tries to count while no job moves; on a busy system the counts stay as they are


async def reconcile(engine: Engine) -> int:
    """Make every index, guard and count agree with the records; how many things were repaired."""
    await engine.init()
    repaired = 0
    for part in (*_INDEXES, *_REST):
        repaired += await _part(engine, part)
    await _recount(engine)
    for part in _QUEUES:
        repaired += await _part(engine, part)
    return repaired


async def _part(engine: Engine, part: str) -> int:
    cursor, repaired = await engine.reconcile(part)
    while cursor:
        cursor, more = await engine.reconcile(part, cursor)
        repaired += more
    return repaired


async def _recount(engine: Engine) -> bool:
    views = Views(engine)
    for _ in range(_MAX_COUNTS):
        last, counted = await views.last_event(), Counter[str]()
        async for _, header in views.headers():
            if not header.compact and header.state != "ready":  # ready jobs are counted in `ready`
                counted[f"{header.queue}{SEPARATOR}{header.state}"] += 1
        if await engine.recount(last, counted) == "ok":
            return True
    return False
