"""What the timer of a worker does, at once: everything that is due happens."""

from penstock.engine.answers import DueCrons
from penstock.engine.engine import Engine
from penstock.worker.tick import tick


async def bring_due(engine: Engine) -> int:
    """Promote, expire, admit, tick and do chores until nothing more is due; when the next thing is (-1: never)."""
    seen: set[tuple[str, int]] = set()
    while True:
        dues = [await engine.promote(), await engine.expire(), await engine.admit()]
        chores, crons = await engine.do_chores(), await engine.due_crons()
        moved = any(due.moved for due in dues) or chores.more or await _tick(engine, crons, seen)
        if not moved:
            return min((at for at in (*(due.next for due in dues), chores.next, crons.next) if at >= 0), default=-1)


async def _tick(engine: Engine, due: DueCrons, seen: set[tuple[str, int]]) -> bool:
    """Whether a tick was seen to that had not been before: a schedule that waits for its last job stays due."""
    ticks = {(cron.id, cron.standing.next) for cron in due.crons if cron.standing is not None} - seen
    seen |= ticks
    return bool(ticks) and await tick(engine, due)
