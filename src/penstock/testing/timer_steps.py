"""The steps of a worker's timer, run by hand: makes what is due happen."""

from penstock.engine.answers import DueCrons
from penstock.engine.engine import Engine
from penstock.worker.timer import tick

NEVER = -1
MOVED = -2


class TimerSteps:
    """The timer of one namespace."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: set[tuple[str, int]] = set()  #: ticks: a schedule that waits for its last job stays due

    async def run(self) -> int:
        """Run every step once: MOVED if anything was due, else the time of the next thing that is due, or NEVER."""
        steps = [await self._engine.promote(), await self._engine.expire(), await self._engine.admit()]
        chores, crons = await self._engine.do_chores(), await self._engine.due_crons()
        if any(step.moved for step in steps) or chores.more or await self._tick(crons):
            return MOVED
        later = [*(step.next for step in steps), chores.next, crons.next]
        return min((at for at in later if at > crons.now), default=NEVER)

    async def _tick(self, due: DueCrons) -> bool:
        ticks = {(cron.id, cron.standing.next) for cron in due.crons if cron.standing is not None} - self._seen
        self._seen |= ticks
        return bool(ticks) and bool(await tick(self._engine, due))
