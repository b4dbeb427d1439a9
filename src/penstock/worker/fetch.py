"""The round trip: whatever finished is settled and the free slots are filled, in one pipeline.

Under load that is a group commit of many jobs per trip; when idle, one trip per job. Two trips may be on their way at
once, each for half of the slots, so that the server works on one half while the other half runs. Nothing polls: a
worker that found less than it wanted is told by the server when there is more.
"""

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from penstock.engine.answers import Leased, read_letter
from penstock.engine.engine import PAGE, Engine
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.engine.transport.script_client import ScriptCall
from penstock.errors import PenstockError
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.lease_check import Hand, LeaseCheck
from penstock.worker.outcome import Buried, Completed, Outcome, Released, describe, tell
from penstock.worker.run import Runner, RunningJob
from penstock.worker.settle import SettledRun, settle

log = logging.getLogger("penstock.worker")

TRIPS: Final = 2  #: on their way at once
BYTES: Final = 4 * 2**20  #: of results in one trip
REFUSALS: Final = 3  #: of one settle by a server that answers, after which the job is buried, or given up
AHEAD: Final = 16  #: calls made beyond one that was not answered; the server remembers twice as many (lib/numbers.lua)
RECHECK: Final = 0.01  #: seconds between two looks whether a lease that may be over was renewed
LOOK: Final = 5.0  #: seconds after which an idle worker looks by itself, should a letter have been lost


class CallNumbers:
    """The numbers of lease calls. One whose answer was lost is used again: the resent call gets the same jobs."""

    def __init__(self) -> None:
        self._last = 0
        self._lost: list[int] = []
        self._open: set[int] = set()

    @property
    def floor(self) -> int:
        """Up to here all calls were answered."""
        return min((*self._open, *self._lost, self._last + 1)) - 1

    @property
    def last(self) -> int:
        """The last that was made."""
        return self._last

    @property
    def unanswered(self) -> frozenset[int]:
        """Those that were made, and may yet be answered."""
        return frozenset((*self._open, *self._lost))

    @property
    def is_ahead(self) -> bool:
        """Whether the next call should wait: once too many were made after one, the server takes that as answered."""
        return not self._lost and self._last - self.floor >= AHEAD

    def take(self) -> int:
        if self._lost:
            number = self._lost.pop()
        else:
            self._last = number = self._last + 1
        self._open.add(number)
        return number

    def answered(self, number: int) -> bool:
        """The call was answered; whether that is news."""
        known = number not in self._open
        self._open.discard(number)
        return not known

    def told(self, number: int) -> bool:
        """A letter answers a call, which may be on its way, lost, or yet to be made; whether that is news."""
        if number == self._last + 1 or number in self._lost:
            self._last = max(self._last, number)
            self._lost = [one for one in self._lost if one != number]
            return True
        return self.answered(number)

    def give_back(self, number: int) -> None:
        if self.answered(number):
            self._lost.append(number)


Settles = list[tuple[list[SettledRun], ScriptCall[list[str]]]]


class Incarnation(NamedTuple):
    """A name under which a worker leases, and the numbers of the calls made under it: they only change together."""

    name: str
    numbers: CallNumbers


class Fetcher:
    """Keeps one worker's slots filled and settles what they finished."""

    def __init__(
        self,
        engine: Engine,
        runner: Runner,
        concurrency: int,
        queues: Callable[[], list[str]],
        unknown: Callable[[str], None],
        health: ConnectionHealth,
        heartbeat: Heartbeat,
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._concurrency = concurrency
        self._queues = queues
        self._unknown = unknown
        self._health = health
        self._heartbeat = heartbeat
        self._own = Incarnation("", CallNumbers())
        self._is_lost = False  #: the engine no longer knows that name, and there is no other yet
        self.busy = 0  #: slots in use, by runs that are not on their way to be settled
        self.running: dict[str, RunningJob] = {}
        self.draining = False
        self.finished = 0
        self.left = math.inf  #: jobs that it may still take
        self.stuck: dict[str, SettledRun] = {}  #: what overran its time in a thread, and how it is to be settled
        self._outcomes: list[SettledRun] = []
        self._hand: set[tuple[str, int, str]] = set()  #: worker, call and id of what was leased and is not settled yet
        self.check = LeaseCheck(engine, self._in_hand)
        self._refusals: Counter[tuple[str, int, str]] = Counter()
        self._early: set[str] = set()  #: cancelled before we knew that we have them
        self._asked = 0  #: slots that calls on their way ask for
        self._settling = 0  #: runs that calls on their way settle
        self._more = True  #: there may be work that was not asked for yet
        self._plenty = False  #: the last answer was full: whoever has room may ask, also while others do
        self._news = False  #: a letter came while a call was on its way: it may tell of what that call did not see
        self._waits = False  #: one trip does not ask before the other is answered
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()

    def begin(self, worker: str) -> None:
        """A new incarnation: what ran under the old one will be refused."""
        self._own, self._is_lost = Incarnation(worker, CallNumbers()), False
        self.look()

    def lose(self) -> None:
        """The engine no longer knows this incarnation: it takes no more jobs."""
        self._is_lost = True

    def look(self) -> None:
        """There may be work."""
        self._more = self._news = True
        self._wake.set()

    def _in_hand(self) -> Hand:
        name, numbers = self._own
        jobs = ((job_id, number) for worker, number, job_id in self._hand if worker == name)
        return Hand.of(name, numbers.last, numbers.unanswered, jobs)

    def cancel(self, job_id: str) -> None:
        """Somebody asked for this job to be cancelled."""
        running = self.running.get(job_id)
        if running is None:
            if self._asked:
                self._early.add(job_id)  # it may be in an answer that is on its way
        else:
            running.context.cancelling = True
            running.stop()

    async def run(self) -> None:
        """Round after round until cancelled."""
        async with asyncio.TaskGroup() as group:
            for trip in range(TRIPS):
                group.create_task(self._rounds(LOOK if trip == 0 else None))

    async def _rounds(self, look: float | None) -> None:
        pause, loop = 0.05, f"round {id(look)}"
        while True:
            try:
                await self._round(look)
                pause = 0.05
                self._health.succeeded(loop)
            except Exception as error:
                if not isinstance(error, PenstockError):
                    log.exception("a round failed, %d runs wait to be settled", len(self._outcomes))
                self._health.failed(loop, error if isinstance(error, PenstockError) else PenstockError(str(error)))
                pause = min(pause * 2, 2.0)
                await self._health.pause(loop, pause)
                self.look()

    async def drained(self) -> None:
        """Until nothing runs that may end, and everything is settled."""
        while self.busy > len(self.stuck) or self._outcomes or self._settling:
            self._settled.clear()
            await self._settled.wait()

    async def quiet(self) -> None:
        """Until nothing runs here, or for a moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.sleep(0)
                await self.drained()
                await self._settled.wait()

    async def _round(self, look: float | None) -> None:
        outcomes = self._take()
        self.busy -= len(outcomes)
        at_rest = not self.busy and not self._asked  # or will be: the server is to know
        asks = self._more or (at_rest and outcomes)
        want = 0 if self.draining or self._is_lost or not asks else self._room()
        if want > 0 and self._own.numbers.is_ahead:
            want, self._waits = 0, True
        if not outcomes and want <= 0:
            await self._sleep(look)
            return
        self._asked += max(want, 0)
        self._settling += len(outcomes)
        if want > 0:
            self._more = self._plenty
        try:
            await self._trip(outcomes, want)
        finally:
            self._asked -= max(want, 0)
            self._settling -= len(outcomes)
            self._settled.set()
            if not self._asked:
                self._early.clear()
            if self._waits:
                self._waits = False
                self._wake.set()

    async def _trip(self, outcomes: list[SettledRun], want: int) -> None:
        settles = settle(self._engine, outcomes)
        calls: list[ScriptCall[Any]] = [call for _, call in settles]
        own, number = self._own, 0
        if want > 0:
            number = own.numbers.take()
            calls.append(self._lease(own, number, want))
        self._news = False
        try:
            answers = await self._engine.script_client.isolated(calls)
            settled = await self._singly(settles, answers)
        except BaseException:
            self._outcomes = outcomes + self._outcomes
            self.busy += len(outcomes)
            own.numbers.give_back(number)
            raise
        refused: Exception | None = None
        for runs, call, answer in settled:
            if isinstance(answer, Exception):
                refused = answer
                self._refused(runs[0], answer)
                continue
            if answer.count(b"ok") < len(answer):
                self._check(runs, call.decode(answer))
            self.finished += len(runs)
            self._let_go(runs)
        if number:
            self._answered(own, number, want, calls[-1], answers[-1])
        if refused is not None:
            raise PenstockError(f"what a job ended in was refused: {refused}") from refused

    async def _singly(
        self, settles: "Settles", answers: list[Any]
    ) -> list[tuple[list[SettledRun], ScriptCall[Any], Any]]:
        """What the calls that settle were answered. Of a page that was refused each run is settled alone."""
        settled: list[tuple[list[SettledRun], ScriptCall[Any], Any]] = []
        alone: Settles = []
        for (runs, call), answer in zip(settles, answers, strict=False):
            if isinstance(answer, Exception) and len(runs) > 1:
                alone += [page for run in runs for page in settle(self._engine, [run])]
            else:
                settled.append((runs, call, answer))
        if alone:
            again = await self._engine.script_client.isolated([call for _, call in alone])
            settled += [(runs, call, answer) for (runs, call), answer in zip(alone, again, strict=True)]
        return settled

    def _refused(self, run: SettledRun, error: Exception) -> None:
        """The server is there, but does not take this: after some tries the job is buried, and at last given up."""
        key = run.worker, run.number, run.id
        self._refusals[key] += 1
        if self._refusals[key] == REFUSALS:
            log.error(
                "job %s: the server refuses what it ended in (%s); it is buried, its result is lost", run.id, error
            )
            run = SettledRun(*key, Buried("settle_refused", describe(error)), run.note)
        elif self._refusals[key] == 2 * REFUSALS:
            log.error("job %s: the server refuses to bury it, too (%s); see `penstock doctor`", run.id, error)
            del self._refusals[key]
            self._let_go([run])
            return
        self._outcomes.append(run)
        self.busy += 1

    def _let_go(self, runs: list[SettledRun]) -> None:
        """They are no longer this worker's."""
        self._runner.settled(runs)
        self._hand.difference_update([(run.worker, run.number, run.id) for run in runs])

    def _answered(self, own: Incarnation, number: int, want: int, call: ScriptCall[Leased], answer: Any) -> None:
        if isinstance(answer, Exception):
            own.numbers.give_back(number)
            raise PenstockError(f"a call of lease failed: {answer}") from answer
        try:
            leased = call.decode(answer)
        except BaseException:
            own.numbers.give_back(number)
            raise
        self._leased(own, number, want, leased)

    def _leased(self, own: Incarnation, number: int, want: int, leased: Leased) -> None:
        """The answer to a call of lease of this incarnation."""
        if leased.word == "unknown":
            self._unknown(own.name)
        elif not own.numbers.answered(number):  # a letter had answered this call before it was made
            self._more = True
        elif own is self._own and not self._is_lost:  # of another one everything is taken back
            self._plenty = leased.again or len(leased.leases) >= want
            self._more = self._more or self._news or self._plenty
            self._start(leased, own.name, number)

    def _take(self) -> list[SettledRun]:
        """What is to be settled now: all of it, unless the results are too big for one trip."""
        size = 0
        for i, run in enumerate(self._outcomes):
            size += len(run.outcome.result) if type(run.outcome) is Completed else 0
            if i and size > BYTES:
                taken, self._outcomes = self._outcomes[:i], self._outcomes[i:]
                self._wake.set()
                return taken
        taken, self._outcomes = self._outcomes, []
        return taken

    def _room(self) -> int:
        """How many jobs to ask for: free slots that nobody asks for yet, but not more than a trip's half, or a page."""
        room = min(self._concurrency - self.busy - self._asked, -(-self._concurrency // TRIPS), PAGE)
        return room if self.left is math.inf else int(min(room, self.left - self._asked))

    async def _sleep(self, look: float | None) -> None:
        try:
            async with asyncio.timeout(look and random.uniform(look * 0.8, look)):  # noqa: S311  (jitter)
                await self._wake.wait()
        except TimeoutError:
            self._more = not self.draining
        self._wake.clear()

    def _lease(self, own: Incarnation, number: int, want: int) -> ScriptCall[Leased]:
        answered = own.numbers.floor
        return self._engine.lease(own.name, number, queues=self._queues(), want=want, answered=answered, by_letter=True)

    def take(self, letter: bytes) -> None:
        """A job that the server gave to this worker while it had nothing to do."""
        number, leased = read_letter(letter)
        if not self._is_lost and self._own.numbers.told(number):
            self._start(leased, self._own.name, number)
        elif any((self._own.name, number, lease.id) not in self._hand for lease in leased.leases):
            self.check.soon()  # most likely an answer brought it before, and it is done; or the server lost writes
        self.look()  # for the next one

    def _start(self, leased: Leased, worker: str, number: int) -> None:
        self.left -= len(leased.leases)
        self._hand.update([(worker, number, lease.id) for lease in leased.leases])
        for job_id in leased.unreadable:
            self.busy += 1
            self._hand.add((worker, number, job_id))
            self._outcomes.append(SettledRun(worker, number, job_id, Buried("unreadable_header", "{}")))
        for lease in leased.leases:
            context = self._runner.context(lease, worker, number)
            running = RunningJob(lease, worker, number, context)
            running.stopped = self.draining  # then it goes back
            self.busy += 1
            if lease.ready.cancelling or lease.id in self._early:
                context.cancelling = running.stopped = True
            self.running[lease.id] = running
            # Not asyncio.create_task, which looks for the loop and names the task: together that takes as long again.
            running.task = self._loop.create_task(self._run(running))

    async def is_held(self, running: RunningJob) -> bool:
        """Whether a job that has not begun still is this worker's; it waits while nobody knows.

        A process that stood still may find an answer that came long ago, and another worker may have its jobs by now.
        """
        while not (lost := running.stopped or self._is_lost or running.worker != self._own.name):
            if time.monotonic() < self._heartbeat.valid_until:
                break
            await asyncio.sleep(RECHECK)
        return not lost

    def drain(self) -> None:
        """Take nothing more."""
        self.draining = True

    def overrun(self, job_id: str, outcome: Outcome) -> None:
        """The thread of this job does not end: the job is settled so when its process has ended."""
        if (running := self.running.get(job_id)) is not None:
            self.stuck[job_id] = SettledRun(running.worker, running.number, job_id, outcome)
            self._settled.set()

    async def _run(self, running: RunningJob) -> None:
        try:
            held = time.monotonic() < self._heartbeat.valid_until or await self.is_held(running)
            running.begun = True
            outcome: Outcome = await self._runner.run(running) if held and not running.stopped else Released()
        except BaseException as error:  # noqa: BLE001  (whatever it was, the slot must be given back and the job settled)
            outcome = Buried("worker_error", describe(error))
        if type(outcome) is not Completed or log.isEnabledFor(logging.DEBUG):
            try:
                tell(running.lease, outcome)
            except Exception:
                log.exception("job %s: how it ended cannot be told", running.lease.id)
        if self.running.get(running.lease.id) is running:
            del self.running[running.lease.id]
        self.stuck.pop(running.lease.id, None)
        self._outcomes.append(SettledRun(running.worker, running.number, running.lease.id, outcome, running.note))
        self._wake.set()

    def _check(self, runs: list[SettledRun], words: list[str]) -> None:
        for run, word in zip(runs, words, strict=True):
            if word == "stale" and type(run.outcome) is not Released:
                log.warning("job %s: this attempt had lost its lease; what it did was refused", run.id)
