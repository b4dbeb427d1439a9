"""Settling: reports how runs ended, with one verb per kind of outcome and a page of runs per call.

A worker settles what finished together (`Settler`); a stream settles each job when its handler asks (`StreamSettler`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import astuple

from penstock.engine.engine import PAGE, Engine
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.engine.transport.script_client import ScriptCall
from penstock.errors import StaleLease, Unavailable
from penstock.worker.outcome import Buried, Completed, Crashed, Outcome, Released, Retried, Snoozed, describe_error
from penstock.worker.retry_pause import MAX_PAUSE, RetryPause

log = logging.getLogger("penstock.worker")

MAX_TRIP_BYTES: Final = 4 * 2**20  #: of results in one round trip
MAX_REFUSALS: Final = (
    3  #: of one settle by a server that answers; then the job is buried and, if that is refused too, given up
)
CLOSE_TIMEOUT: Final = 5.0  #: seconds for the settles in flight when their stream closes


class FinishedRun(msgspec.Struct, frozen=True, gc=False):
    """A run that has ended, and how."""

    worker: str
    number: int  #: of the lease call
    id: str
    outcome: Outcome
    shared_slot: int = -1  #: the slot in the shared state that says that it had started

    @property
    def lease_key(self) -> tuple[str, int, str]:
        return self.worker, self.number, self.id


class SettlePage(NamedTuple):
    """Runs that one call settles."""

    runs: list[FinishedRun]
    call: ScriptCall[list[str]]


class SettleAnswer(NamedTuple):
    """What the server answered to a page: the raw words, or the error that refused it."""

    page: SettlePage
    answer: Any


def settle(engine: Engine, runs: list[FinishedRun]) -> list[SettlePage]:
    """The calls that settle these runs."""
    kinds: dict[tuple[str, type], list[FinishedRun]] = {}
    for run in runs:
        kind = run.worker, type(run.outcome)
        if kind in kinds:
            kinds[kind].append(run)
        else:
            kinds[kind] = [run]
    return [SettlePage(page, _call(engine, page)) for kind_runs in kinds.values() for page in _pages(kind_runs)]


def _call(engine: Engine, runs: list[FinishedRun]) -> ScriptCall[list[str]]:
    """One call for runs of one worker with the same kind of outcome."""
    rows: Any = [(run.id, run.number, *astuple(run.outcome)) for run in runs]
    worker = runs[0].worker
    match runs[0].outcome:
        case Completed():
            return engine.complete(worker, rows)
        case Retried():
            return engine.retry(worker, rows)
        case Buried():
            return engine.bury(worker, rows)
        case Crashed():
            return engine.crash(worker, rows)
        case Snoozed():
            return engine.snooze(worker, rows)
        case Released():
            return engine.release(worker, rows)


def _pages(runs: list[FinishedRun]) -> Iterable[list[FinishedRun]]:
    return (runs[start : start + PAGE] for start in range(0, len(runs), PAGE))


class Settler:
    """A worker's finished runs, until the server knows how they ended or has refused them too often."""

    def __init__(self, engine: Engine, on_settled: Callable[[list[FinishedRun]], None]) -> None:
        """`on_settled` gets runs that are no longer this worker's business."""
        self._engine = engine
        self._on_settled = on_settled
        self.waiting: list[FinishedRun] = []
        self.in_flight = 0  #: runs that calls in flight settle
        self.settled = 0  #: runs that were settled so far
        self._refusals: Counter[tuple[str, int, str]] = Counter()

    def take(self) -> list[FinishedRun]:
        """The runs to settle in the next round trip: all of them, unless their results are too big for one."""
        size, end = 0, len(self.waiting)
        for i, run in enumerate(self.waiting):
            size += len(run.outcome.result) if type(run.outcome) is Completed else 0
            if i and size > MAX_TRIP_BYTES:
                end = i
                break
        taken, self.waiting = self.waiting[:end], self.waiting[end:]
        return taken

    def put_back(self, runs: list[FinishedRun]) -> None:
        """The server was not reached: they come first in the next round trip."""
        self.waiting = runs + self.waiting

    async def answers_to(self, pages: list[SettlePage], answers: list[Any]) -> list[SettleAnswer]:
        """Pages with their answers. The runs of a page that was refused are settled again, one by one."""
        answered: list[SettleAnswer] = []
        single: list[SettlePage] = []
        for page, answer in zip(pages, answers, strict=False):  # a lease call may come last
            if isinstance(answer, Exception) and len(page.runs) > 1:
                single += [one_run for run in page.runs for one_run in settle(self._engine, [run])]
            else:
                answered.append(SettleAnswer(page, answer))
        if single:
            retried = await self._engine.script_client.isolated([page.call for page in single])
            answered += map(SettleAnswer, single, retried)
        return answered

    def apply(self, answered: list[SettleAnswer]) -> Exception | None:
        """Let go of runs that were settled, keep those that were refused; the last refusal, if there was one."""
        refusal: Exception | None = None
        for (runs, call), answer in answered:
            if isinstance(answer, Exception):
                refusal = answer
                self._refused(runs[0], answer)
                continue
            if answer.count(b"ok") < len(answer):
                _log_stale(runs, call.decode(answer))
            self.settled += len(runs)
            self._on_settled(runs)
        return refusal

    def _refused(self, run: FinishedRun, error: Exception) -> None:
        """Settle again; after some refusals bury the job instead, and finally give it up."""
        key = run.lease_key
        self._refusals[key] += 1
        if self._refusals[key] == 2 * MAX_REFUSALS:
            log.error("job %s: the server refuses to bury it, too (%s); see `penstock doctor`", run.id, error)
            del self._refusals[key]
            self._on_settled([run])
            return
        if self._refusals[key] == MAX_REFUSALS:
            log.error(
                "job %s: the server refuses what it ended in (%s); it is buried, its result is lost", run.id, error
            )
            run = FinishedRun(*key, Buried("settle_refused", describe_error(error)), run.shared_slot)
        self.waiting.append(run)


def _log_stale(runs: list[FinishedRun], words: list[str]) -> None:
    for run, word in zip(runs, words, strict=True):
        if word == "stale" and type(run.outcome) is not Released:
            log.warning("job %s: this attempt had lost its lease; what it did was refused", run.id)


class StreamSettler:
    """Settles the jobs of one stream, each in a task that is repeated until the server has answered.

    The task outlives a handler that is cancelled while it waits. If the settle ended with the handler, nobody would
    know whether the job is settled: its slot would be lost, or the job would stay running until its stream closes.
    """

    def __init__(self, engine: Engine, health: ConnectionHealth) -> None:
        self._engine = engine
        self._health = health
        self._tasks: set[asyncio.Task[str]] = set()
        self._is_open = True

    def start(self, run: FinishedRun) -> "asyncio.Task[str]":
        """Settle it; the task ends with the server's word, or with Unavailable if the stream is closed before."""
        if not self._is_open:
            raise StaleLease(f"job {run.id} is no longer held by this stream, which was closed")
        task = asyncio.create_task(self._until_answered(run))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def aclose(self) -> None:
        """Wait for settles in flight, within a limit: jobs without an answer go back with the stream's lease."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    while self._tasks:
                        await asyncio.wait(list(self._tasks))
        finally:
            self._is_open = False
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _until_answered(self, run: FinishedRun) -> str:
        retry = RetryPause(self._health, f"settle {run.id}")
        try:
            while True:
                try:
                    ((_, call),) = settle(self._engine, [run])
                    (word,) = await call
                except Unavailable as error:
                    await retry.failed(error)
                except Exception as error:  # noqa: BLE001  (the server refuses this settle; that may be repaired)
                    if retry.next < MAX_PAUSE:
                        log.warning("job %s could not be settled; trying again until it is: %s", run.id, error)
                    await retry.wait()
                else:
                    retry.succeeded()
                    return word
        except asyncio.CancelledError:
            raise Unavailable(
                f"the stream was closed before the server answered what became of job {run.id}: unless it was "
                "settled by then, it runs again"
            ) from None

    def _ended(self, task: "asyncio.Task[str]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio logs nothing if no caller waits for the task
