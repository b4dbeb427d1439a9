"""The timer: what is due becomes ready, what is late expires, schedules tick, what the dead left is taken back.

Any number of timers may run anywhere; each step is a script that is safe to call at any time. A timer knows when the
next step is due, by the server's clock, and sleeps until then; letters tell it of earlier times. So while it waits it
asks for nothing.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from penstock.engine.answers import Chores, Due, DueCrons
from penstock.engine.engine import Engine
from penstock.engine.keys import SEPARATOR
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.errors import PenstockError, SchemaMismatch, Unavailable
from penstock.worker.cron_ticks import tick

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.engine.transport.script_client import ScriptCall

log = logging.getLogger("penstock.worker")

LONGEST: Final = 60.0  #: seconds between two looks at what is due, should a letter have been lost
PRUNE: Final = 15.0
TROUBLE: Final = 1.0  #: seconds until what failed is tried again
CRONS: Final = 20  #: schedules that are asked for at once
MOST_STUCK: Final = 1_000
FAILED: Final = 10.0  #: the same of a step that the server refuses although it answers
DUE: Final = ("promote", "expire", "admit", "due_crons", "do_chores")


class Timer:
    """Keeps the due times of one namespace, to the millisecond, on this process' clock but by the server's time."""

    def __init__(
        self,
        engine: Engine,
        life: int,
        health: ConnectionHealth,
        *,
        reap: float | None = None,
        moved: "Callable[[], None]" = lambda: None,
    ) -> None:
        """`reap`: seconds between two looks for the dead, unless somebody says that there are some."""
        self._engine = engine
        self._health = health
        self._reap_every = life / 3000 if reap is None else reap
        self._life = life
        self._moved = moved
        self._armed = asyncio.Event()
        self._at: dict[str, float] = dict.fromkeys(DUE, 0.0)  #: step → when to do it, by the loop's clock
        self._behind: float | None = None  #: seconds by which the server's clock is behind the loop's
        self._stuck = 0  #: schedules that stay due, as nothing here can tick them: others are asked for beyond them
        self._ended: set[str] = set()  #: schedules whose waiting ticks may go on

    def channels(self) -> list[str]:
        """Where it is told of things."""
        return [self._engine.keys.timer, self._engine.keys.mailbox("crons")]

    def letter(self, channel: str, text: bytes) -> None:
        if channel == self._engine.keys.timer:
            self.rearm(int(text) if text.isdigit() else None)
        else:
            self.ended(text.decode().split(SEPARATOR)[1:])

    def reap_soon(self) -> None:
        """Somebody is past its life."""
        self._at["reap"] = 0.0
        self._armed.set()

    def rearm(self, at: int | None = None) -> None:
        """Something is due at this time of the server, or at a time that is not known."""
        when = 0.0 if at is None or self._behind is None else at / 1000 + self._behind
        for step in DUE:
            self._at[step] = min(self._at[step], when)
        self._armed.set()

    def ended(self, job_ids: list[str]) -> None:
        """Jobs of schedules have finished; their ids begin with the schedule's."""
        self._ended.update(job_id.rpartition("@")[0] for job_id in job_ids)
        self._at["due_crons"] = 0.0
        self._armed.set()

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        self._at |= {"reap": clock() + self._reap_every, "prune": clock() + PRUNE}
        while True:
            self._armed.clear()
            late = [step for step, at in self._at.items() if at <= clock()]
            if not late:
                await self._sleep(min(self._at.values()) - clock())
                continue
            try:
                await self._see_to(late, clock())
                self._health.succeeded("timer")
            except Exception as error:
                if not isinstance(error, PenstockError):
                    log.exception("the timer failed; it goes on")
                self._health.failed("timer", error if isinstance(error, PenstockError) else PenstockError(str(error)))
                self._at |= dict.fromkeys((*late, *DUE), 0.0)  # a letter may have been lost meanwhile
                await self._health.pause("timer", TROUBLE)

    async def _see_to(self, late: list[str], now: float) -> None:
        if due := [step for step in late if step in DUE]:
            await self._due(due, now)
        if "reap" in late:
            self._at["reap"] = now + self._reap_every
            await self._alone("reap", self._reap())
        if "prune" in late:
            self._at["prune"] = now + PRUNE
            await self._alone("prune", self._prune())

    async def _alone(self, step: str, work: "Awaitable[None]") -> None:
        """A step whose failure is its own, unless there is no server."""
        try:
            await work
        except (Unavailable, SchemaMismatch):
            raise
        except Exception as error:  # noqa: BLE001  (whatever it is, the other steps go on)
            self._failed(step, error, asyncio.get_running_loop().time())

    def _failed(self, step: str, error: Exception, now: float) -> None:
        """It is tried again, less often than when there is no server: that would be of little use."""
        log.error("%s failed, and is tried again in %.0f s: %s; `penstock doctor` may say why", step, FAILED, error)
        self._at[step] = now + FAILED

    async def _due(self, steps: list[str], now: float) -> None:
        """Do what is due, in one round trip, and learn when the next thing is."""
        ended, self._ended = self._ended, set()
        calls: dict[str, ScriptCall[Any]] = {
            "promote": self._engine.promote(),
            "expire": self._engine.expire(),
            "admit": self._engine.admit(),
            "due_crons": self._engine.due_crons(CRONS + self._stuck, also=sorted(ended)),
            "do_chores": self._engine.do_chores(),
        }
        self._at |= dict.fromkeys(steps, now + LONGEST)  # a letter that comes meanwhile may only bring it forward
        try:
            answers = await self._engine.script_client.isolated([calls[step] for step in steps])
        except PenstockError:
            self._ended |= ended
            raise
        for step, raw in zip(steps, answers, strict=True):
            if isinstance(raw, Exception):
                self._failed(step, raw, now)
                continue
            answer: Due | DueCrons | Chores = calls[step].decode(raw)
            # Not before it was asked did the server's clock show this: so one wakes up too early rather than too late.
            self._behind = now - answer.now / 1000
            if not isinstance(answer, DueCrons) and answer.moved:
                self._moved()
            if answer.next >= 0:
                self._at[step] = min(self._at[step], answer.next / 1000 + self._behind)
            if isinstance(answer, DueCrons) and answer.crons:
                seen_to = await tick(self._engine, answer)
                self._stuck = min(len(answer.crons) - seen_to, MOST_STUCK)
                if not seen_to:
                    self._at[step] = now + TROUBLE  # none of them could be done here; perhaps elsewhere

    async def _reap(self) -> None:
        moved, more = await self._engine.reap(self._life, cause='{"type": "WorkerLost", "message": "not heard of"}')
        if moved:
            log.warning("%d jobs of lost workers were taken back", moved)
        while more:
            _, more = await self._engine.reap(self._life)

    async def _prune(self) -> None:
        _, more = await self._engine.prune()
        while more:
            _, more = await self._engine.prune()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._armed.wait()
        except TimeoutError:
            pass
