"""The round trip: finished runs are settled and free slots are filled, in one pipeline.

Under load that is a group commit of many jobs per trip; when idle, one trip per job. Two trips may be in flight at
once, each for half of the slots, so that the server works on one half while the other half runs. Nothing polls: after
an answer with fewer jobs than were asked for, the server sends a message when there is more.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.engine.answers import Leased, read_pushed_lease
from penstock.engine.engine import PAGE, Engine
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.engine.transport.script_client import ScriptCall
from penstock.errors import PenstockError
from penstock.worker.retry_pause import RetryPause
from penstock.worker.session import Registration, Session
from penstock.worker.settle import FinishedRun, SettleAnswer, settle
from penstock.worker.slots import Slots

log = logging.getLogger("penstock.worker")

MAX_TRIPS: Final = 2  #: in flight at once
IDLE_POLL_INTERVAL: Final = 5.0  #: seconds after which an idle worker asks by itself, in case a message was lost


class LeaseCall(NamedTuple):
    """A call that asks for jobs, and for which registration it was made."""

    registration: Registration
    number: int
    want: int
    call: ScriptCall[Leased]


class Fetcher:
    """Keeps one worker's slots filled and settles what they finished."""

    def __init__(
        self, engine: Engine, session: Session, slots: Slots, queues: Callable[[], list[str]], health: ConnectionHealth
    ) -> None:
        """`queues` gives the order in which the next call looks at them."""
        self._engine = engine
        self._session = session
        self._slots = slots
        self._settler = slots.settler
        self._queues = queues
        self._health = health
        self._wake = slots.wake
        self._max_want = min(-(-slots.concurrency // MAX_TRIPS), PAGE)
        self.requested = 0  #: jobs that calls in flight ask for
        self._may_have_work = True  #: there may be jobs that no call has asked for yet
        self._was_full = (
            False  #: the last answer was full: with free slots ask again, even while another call is in flight
        )
        self._is_postponed = False  #: no call was made, because too many were made after one that is unanswered

    async def run(self) -> None:
        """Round after round until cancelled."""
        async with asyncio.TaskGroup() as group:
            for trip in range(MAX_TRIPS):
                group.create_task(self._rounds(f"round {trip}", IDLE_POLL_INTERVAL if trip == 0 else None))

    async def _rounds(self, name: str, poll_interval: float | None) -> None:
        retry = RetryPause(self._health, name)
        while True:
            try:
                await self._round(poll_interval)
                retry.succeeded()
            except Exception as error:
                if not isinstance(error, PenstockError):
                    log.exception("a round failed, %d runs wait to be settled", len(self._settler.waiting))
                await retry.failed(error)
                self.work_arrived()

    # Events

    def work_arrived(self) -> None:
        """There may be jobs to lease."""
        self._may_have_work = True
        self._wake.set()

    def job_pushed(self, message: bytes) -> None:
        """The server leased a job to this worker while it was idle, as the answer to its next call."""
        number, leased = read_pushed_lease(message)
        registration = self._session.registration
        if not registration.is_lost and registration.calls.mark_pushed(number):
            self._slots.start(leased, registration.name, number)
        elif any((registration.name, number, lease.id) not in self._slots.held for lease in leased.leases):
            # Most likely a lease answer had this job, and it is done by now; or the server lost writes.
            self._session.lease_check.request()
        self.work_arrived()

    def cancel(self, job_id: str) -> None:
        """Somebody asked for this job to be cancelled."""
        self._slots.cancel(job_id, may_arrive=self.requested > 0)

    # One round

    async def _round(self, poll_interval: float | None) -> None:
        """Take what finished, decide how many jobs to ask for, make one round trip, apply the answers."""
        runs = self._take_finished()
        want = self._want(has_finished=bool(runs))
        if not runs and not want:
            await self._sleep(poll_interval)
            return
        self._settler.in_flight += len(runs)
        self.requested += want
        try:
            await self._trip(runs, self._lease_call(want) if want else None)
        finally:
            self._settler.in_flight -= len(runs)
            self.requested -= want
            self._trip_ended()

    async def _trip(self, runs: list[FinishedRun], lease: LeaseCall | None) -> None:
        settled, answer = await self._send(runs, lease)
        refusal = self._settler.apply(settled)
        if lease is not None:
            self._apply_lease(lease, answer)
        if refusal is not None:
            raise PenstockError(f"what a job ended in was refused: {refusal}") from refusal

    def _take_finished(self) -> list[FinishedRun]:
        runs = self._settler.take()
        if self._settler.waiting:  # too much for one trip
            self._wake.set()
        return runs

    def _want(self, *, has_finished: bool) -> int:
        """How many jobs to ask for."""
        # A worker that becomes idle asks in any case, so that the server knows of it and can push the next job.
        comes_to_rest = has_finished and not self._slots.busy and not self.requested
        if self._slots.is_draining or self._session.registration.is_lost or not (self._may_have_work or comes_to_rest):
            return 0
        want = min(self._slots.free - self.requested, self._max_want)
        if want <= 0:
            return 0
        if self._session.registration.calls.is_too_far_ahead:
            self._is_postponed = True
            return 0
        self._may_have_work = self._was_full
        return want

    def _lease_call(self, want: int) -> LeaseCall:
        registration = self._session.registration
        number, answered = registration.calls.take(), registration.calls.answered_up_to
        queues, name = self._queues(), registration.name
        call = self._engine.lease(name, number, queues=queues, want=want, answered=answered, push=True)
        return LeaseCall(registration, number, want, call)

    async def _send(self, runs: list[FinishedRun], lease: LeaseCall | None) -> tuple[list[SettleAnswer], Any]:
        """One round trip: the answers to what was settled, and to the lease call. If it fails, nothing has changed."""
        try:
            pages = settle(self._engine, runs)
            calls: list[ScriptCall[Any]] = [page.call for page in pages]
            if lease is not None:
                calls.append(lease.call)
            answers = await self._engine.script_client.isolated(calls)
            return await self._settler.answers_to(pages, answers), answers[-1]
        except BaseException:
            self._settler.put_back(runs)
            if lease is not None:
                lease.registration.calls.give_back(lease.number)
            raise

    def _apply_lease(self, lease: LeaseCall, answer: Any) -> None:
        registration, number, want, call = lease
        try:
            leased = _decoded(call, answer)
        except BaseException:
            registration.calls.give_back(number)
            raise
        if leased.word == "unknown":
            self._session.lose(registration.name)
        elif not registration.calls.mark_answered(number):  # a pushed job had answered this call before it was made
            self._may_have_work = True
        elif registration is self._session.registration and not registration.is_lost:  # else others have its jobs
            self._was_full = leased.again or len(leased.leases) >= want
            self._may_have_work = self._may_have_work or self._was_full
            self._slots.start(leased, registration.name, number)

    def _trip_ended(self) -> None:
        self._slots.progressed.set()
        if not self.requested:
            self._slots.forget_early_cancels()
        if self._is_postponed:
            self._is_postponed = False
            self._wake.set()

    async def _sleep(self, poll_interval: float | None) -> None:
        try:
            async with asyncio.timeout(poll_interval and random.uniform(poll_interval * 0.8, poll_interval)):  # noqa: S311  (jitter)
                await self._wake.wait()
        except TimeoutError:
            self._may_have_work = True
        self._wake.clear()


def _decoded(call: ScriptCall[Leased], answer: Any) -> Leased:
    if isinstance(answer, Exception):
        raise PenstockError(f"a call of lease failed: {answer}") from answer
    return call.decode(answer)
