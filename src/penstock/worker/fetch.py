"""The round trip: whatever finished is settled and the free slots are filled, in one pipeline.

Under load that is a group commit of many jobs per trip; when idle, one trip per job. Nothing polls: a worker that found
less than it wanted is told by the server when there is more.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from penstock.engine.engine import Engine, Leased
from penstock.engine.link import Call
from penstock.errors import PenstockError
from penstock.worker.run import Runner, Running
from penstock.worker.settle import Settled, settle

log = logging.getLogger("penstock.worker")

LOOK: Final = 5.0  #: seconds after which an idle worker looks by itself, should a letter have been lost


class Fetcher:
    """Keeps one worker's slots filled and settles what they finished."""

    def __init__(
        self,
        engine: Engine,
        runner: Runner,
        concurrency: int,
        queues: Callable[[], list[str]],
        unknown: Callable[[], Any],
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._concurrency = concurrency
        self._queues = queues
        self._unknown = unknown
        self.worker = ""
        self.busy = 0  #: slots in use
        self.running: dict[str, Running] = {}
        self.draining = False
        self.finished = 0
        self._answered = 0
        self._outcomes: list[Settled] = []
        self._more = True  #: there may be work that was not asked for yet
        self._news = False  #: a letter came while a call was on its way: it may tell of what that call did not see
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()

    def begin(self, worker: str) -> None:
        """A new incarnation: what ran under the old one will be refused."""
        self.worker, self._answered = worker, 0
        self.look()

    def look(self) -> None:
        """There may be work."""
        self._more = self._news = True
        self._wake.set()

    def cancel(self, job_id: str) -> None:
        """Somebody asked for this job to be cancelled."""
        running = self.running.get(job_id)
        if running is not None:
            running.context.cancelling = True
            running.stop()

    async def run(self) -> None:
        """Round after round until cancelled."""
        pause = 0.05
        while True:
            try:
                await self._round()
                pause = 0.05
            except PenstockError as error:
                log.warning("the engine is not reachable, %d runs wait to be settled: %s", len(self._outcomes), error)
                pause = min(pause * 2, 2.0)
                await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311  (jitter)
                self.look()

    async def drained(self) -> None:
        """Until nothing runs and everything is settled."""
        while self.busy or self._outcomes:
            self._settled.clear()
            await self._settled.wait()

    async def moved(self) -> None:
        """Until a round settled something, or for a moment."""
        self._settled.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await self._settled.wait()

    async def _round(self) -> None:
        want = 0 if self.draining or not self._more else self._concurrency - self.busy
        outcomes, self._outcomes = self._outcomes, []
        if not outcomes and want <= 0:
            await self._sleep()
            return
        settles = settle(self._engine, outcomes)
        calls: list[Call[Any]] = [call for _, call in settles]
        if want > 0:
            calls.append(self._lease(want))
        self._news = False
        try:
            answers = await self._engine.link.together(*calls)
        except BaseException:
            self._outcomes = outcomes + self._outcomes
            raise
        for (runs, call), answer in zip(settles, answers, strict=False):
            self._check(runs, call.decode(answer))
        self.busy -= len(outcomes)
        self.finished += len(outcomes)
        self._settled.set()
        if want > 0:
            await self._start(calls[-1].decode(answers[-1]), want)

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout(random.uniform(LOOK * 0.8, LOOK)):  # noqa: S311  (jitter)
                await self._wake.wait()
        except TimeoutError:
            self._more = not self.draining
        self._wake.clear()

    def _lease(self, want: int) -> Call[Leased]:
        # The number moves on only with an answer: a call whose answer was lost is sent again and gets the same jobs.
        return self._engine.lease(
            self.worker, self._answered + 1, queues=self._queues(), want=want, answered=self._answered
        )

    async def _start(self, leased: Leased, want: int) -> None:
        if leased.word == "unknown":
            await self._unknown()
            return
        self._answered += 1
        self._more = self._news or leased.again or len(leased.leases) >= want
        for lease in leased.leases:
            context = self._runner.context(lease, self.worker, self._answered)
            running = Running(lease, self.worker, self._answered, context)
            self.running[lease.id] = running
            self.busy += 1
            if lease.header.cancelling:
                context.cancelling = running.stopped = True
            running.task = asyncio.create_task(self._run(running))

    async def _run(self, running: Running) -> None:
        outcome = await self._runner.run(running)
        if self.running.get(running.lease.id) is running:
            del self.running[running.lease.id]
        self._outcomes.append(Settled(running.worker, running.number, running.lease.id, outcome))
        self._wake.set()

    def _check(self, runs: list[Settled], words: list[str]) -> None:
        for run, word in zip(runs, words, strict=True):
            if word == "stale":
                log.warning("job %s: this attempt had lost its lease; what it did was refused", run.id)
