"""What the timer of a worker does, asked for by hand: what is due happens."""

from penstock.engine.answers import DueCrons
from penstock.engine.engine import Engine
from penstock.worker.cron_ticks import tick

NEVER = -1
MOVED = -2


class Due:
    """Sees to what is due in one namespace."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: set[tuple[str, int]] = set()  #: ticks, for a schedule that waits for its last job stays due

    async def bring(self) -> int:
        """Promote, expire, admit, tick, do chores: MOVED if anything was due, else when the next thing is, or NEVER."""
        dues = [await self._engine.promote(), await self._engine.expire(), await self._engine.admit()]
        chores, crons = await self._engine.do_chores(), await self._engine.due_crons()
        if any(due.moved for due in dues) or chores.more or await self._tick(crons):
            return MOVED
        later = [*(due.next for due in dues), chores.next, crons.next]
        return min((at for at in later if at > crons.now), default=NEVER)

    async def _tick(self, due: DueCrons) -> bool:
        ticks = {(cron.id, cron.standing.next) for cron in due.crons if cron.standing is not None} - self._seen
        self._seen |= ticks
        return bool(ticks) and bool(await tick(self._engine, due))
