"""The timer: what is due becomes ready, what is late expires, schedules tick, jobs of dead workers are taken back.

Any number of timers may run anywhere; each step is a script that is safe to call at any time. A timer knows when the
next step is due, by the server's clock, and sleeps until then; messages tell it of earlier times. So while it waits it
sends nothing.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from penstock.engine.answers import Chores, Due, DueCron, DueCrons
from penstock.engine.engine import Engine
from penstock.engine.keys import SEPARATOR
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.errors import PenstockError, SchemaMismatch, Unavailable
from penstock.model.schedule import plan
from penstock.worker.retry_pause import RetryPause

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.engine.transport.script_client import ScriptCall

log = logging.getLogger("penstock.worker")

MAX_SLEEP: Final = 60.0  #: seconds between two checks of the due times, in case a message was lost
PRUNE_INTERVAL: Final = 15.0  #: seconds
RETRY_INTERVAL: Final = 1.0  #: seconds until what failed is tried again
REFUSED_INTERVAL: Final = 10.0  #: the same for a step that the server refuses although it answers
CRONS_PAGE: Final = 20  #: schedules in one answer
MAX_STUCK_CRONS: Final = 1_000
DUE_STEPS: Final = ("promote", "expire", "admit", "due_crons", "do_chores")


class Timer:
    """Keeps the due times of one namespace, to the millisecond: on this process's clock, but by the server's time."""

    def __init__(
        self,
        engine: Engine,
        lease: int,
        health: ConnectionHealth,
        *,
        reap_interval: float | None = None,
        on_work: "Callable[[], None]" = lambda: None,
    ) -> None:
        """`lease` is in ms. `reap_interval`: seconds between two reaps without a request; else a third of a lease."""
        self._engine = engine
        self._health = health
        self._reap_interval = lease / 3000 if reap_interval is None else reap_interval
        self._lease = lease
        self._on_work = on_work
        self._changed = asyncio.Event()
        self._times: dict[str, float] = dict.fromkeys(DUE_STEPS, 0.0)  #: step → when to do it, by the loop's clock
        self._clock_offset: float | None = None  #: seconds by which the loop's clock is ahead of the server's
        self._stuck_crons = 0  #: schedules that stay due because they cannot be ticked here; others come after them
        self._ended_crons: set[str] = set()  #: schedules whose waiting ticks may go on

    def channels(self) -> list[str]:
        """The channels that bring it messages."""
        return [self._engine.keys.timer, self._engine.keys.channel("crons")]

    def receive(self, channel: str, message: bytes) -> None:
        if channel == self._engine.keys.timer:
            self.rearm(int(message) if message.isdigit() else None)
        else:
            self._jobs_ended(message.decode().split(SEPARATOR)[1:])

    def reap_soon(self) -> None:
        """Reap soon: the lease of a worker is over."""
        self._times["reap"] = 0.0
        self._changed.set()

    def rearm(self, at: int | None = None) -> None:
        """Something is due at this time of the server, or at a time that is not known."""
        when = 0.0 if at is None or self._clock_offset is None else at / 1000 + self._clock_offset
        for step in DUE_STEPS:
            self._times[step] = min(self._times[step], when)
        self._changed.set()

    def _jobs_ended(self, job_ids: list[str]) -> None:
        """Jobs of schedules have finished; their ids begin with the schedule's."""
        self._ended_crons.update(job_id.rpartition("@")[0] for job_id in job_ids)
        self._times["due_crons"] = 0.0
        self._changed.set()

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        retry = RetryPause(self._health, "timer", first=RETRY_INTERVAL, longest=RETRY_INTERVAL)
        self._times |= {"reap": clock() + self._reap_interval, "prune": clock() + PRUNE_INTERVAL}
        while True:
            self._changed.clear()
            steps = [step for step, at in self._times.items() if at <= clock()]
            if not steps:
                await self._sleep(min(self._times.values()) - clock())
                continue
            try:
                await self._do(steps, clock())
                retry.succeeded()
            except Exception as error:
                if not isinstance(error, PenstockError):
                    log.exception("the timer failed; it goes on")
                self._times |= dict.fromkeys((*steps, *DUE_STEPS), 0.0)  # a message may have been lost meanwhile
                await retry.failed(error)

    async def _do(self, steps: list[str], now: float) -> None:
        if due := [step for step in steps if step in DUE_STEPS]:
            await self._do_due(due, now)
        if "reap" in steps:
            self._times["reap"] = now + self._reap_interval
            await self._do_alone("reap", self._reap())
        if "prune" in steps:
            self._times["prune"] = now + PRUNE_INTERVAL
            await self._do_alone("prune", self._prune())

    async def _do_alone(self, step: str, work: "Awaitable[None]") -> None:
        """Do each step alone, so that a step that fails stops no other, unless there is no server."""
        try:
            await work
        except (Unavailable, SchemaMismatch):
            raise
        except Exception as error:  # noqa: BLE001  (whatever it is, the other steps go on)
            self._postpone(step, error, asyncio.get_running_loop().time())

    def _postpone(self, step: str, error: Exception, now: float) -> None:
        """Try a refused step again, but less often than without a server."""
        log.error(
            "%s failed, and is tried again in %.0f s: %s; `penstock doctor` may say why", step, REFUSED_INTERVAL, error
        )
        self._times[step] = now + REFUSED_INTERVAL

    async def _do_due(self, steps: list[str], now: float) -> None:
        """Do what is due, in one round trip, and learn when the next thing is."""
        ended, self._ended_crons = self._ended_crons, set()
        calls = self._calls(sorted(ended))
        self._times |= dict.fromkeys(steps, now + MAX_SLEEP)  # a message that comes meanwhile only brings it forward
        try:
            answers = await self._engine.script_client.isolated([calls[step] for step in steps])
        except PenstockError:
            self._ended_crons |= ended
            raise
        for step, raw in zip(steps, answers, strict=True):
            if isinstance(raw, Exception):
                self._postpone(step, raw, now)
            else:
                await self._do_alone(step, self._apply(step, calls[step], raw, now))

    def _calls(self, ended_crons: list[str]) -> "dict[str, ScriptCall[Any]]":
        return {
            "promote": self._engine.promote(),
            "expire": self._engine.expire(),
            "admit": self._engine.admit(),
            "due_crons": self._engine.due_crons(CRONS_PAGE + self._stuck_crons, also=ended_crons),
            "do_chores": self._engine.do_chores(),
        }

    async def _apply(self, step: str, call: "ScriptCall[Due | DueCrons | Chores]", raw: object, now: float) -> None:
        answer = call.read(raw)
        # The server read its clock after `now`, so a wake-up is too early rather than too late.
        self._clock_offset = now - answer.now / 1000
        if answer.next >= 0:
            self._times[step] = min(self._times[step], answer.next / 1000 + self._clock_offset)
        if isinstance(answer, DueCrons):
            await self._tick(step, answer, now)
        elif answer.moved:
            self._on_work()

    async def _tick(self, step: str, due: DueCrons, now: float) -> None:
        if not due.crons:
            return
        ticked = await tick(self._engine, due)
        self._stuck_crons = min(len(due.crons) - ticked, MAX_STUCK_CRONS)
        if not ticked:
            self._times[step] = now + RETRY_INTERVAL  # none could be ticked here; another worker may know them

    async def _reap(self) -> None:
        moved, more = await self._engine.reap(self._lease, cause='{"type": "WorkerLost", "message": "not heard of"}')
        if moved:
            log.warning("%d jobs of lost workers were taken back", moved)
        while more:
            _, more = await self._engine.reap(self._lease)

    async def _prune(self) -> None:
        _, more = await self._engine.prune()
        while more:
            _, more = await self._engine.prune()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass


async def tick(engine: Engine, due: DueCrons) -> int:
    """Make the jobs of schedules that are due; how many of them could tick. One that fails does not stop the others.

    It needs none of the app's code: all of it is stored.
    """
    calls = [(cron.id, call) for cron in due.crons if (call := _tick_call(engine, cron, due.now)) is not None]
    if not calls:
        return 0
    answers = await engine.script_client.isolated([call for _, call in calls])
    words: dict[str, str] = {}
    for (schedule, call), raw in zip(calls, answers, strict=True):
        if isinstance(raw, Exception):
            log.error("schedule %s could not tick: %s; set it again, or remove it", schedule, raw)
            words[schedule] = "alone"
        else:
            words[schedule] = call.decode(raw)[0]
    for schedule, word in words.items():
        if word == "orphaned":
            log.warning("schedule %s is in no live worker's code; it makes no more jobs until it is again", schedule)
    return sum(word != "alone" for word in words.values())


def _tick_call(engine: Engine, cron: DueCron, now: int) -> "ScriptCall[tuple[str, int]] | None":
    if cron.spec is None or cron.standing is None:
        log.error("schedule %s was written by another version and cannot be read here", cron.id)
        return None
    try:
        ticks = plan(cron.id, cron.spec, cron.standing.next, now)
    except (PenstockError, ValueError, OverflowError) as error:
        log.error("the next times of schedule %s cannot be computed here: %s", cron.id, error)  # noqa: TRY400  (the text says it all)
        return None
    claimed = cron.standing.next if ticks.next != cron.standing.next else -1
    return engine.tick(cron.id, cron.spec, claimed, ticks)
