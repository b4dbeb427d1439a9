"""A worker's slots: the jobs in them, from their lease until the server knows how they ended."""

import asyncio
import logging
import math
import time
from contextlib import suppress
from typing import Final

from penstock.engine.answers import Leased
from penstock.engine.engine import Engine
from penstock.worker.outcome import Buried, Completed, Outcome, Released, describe_error, log_outcome, sealed
from penstock.worker.run import Runner, RunningJob
from penstock.worker.session import Session
from penstock.worker.settle import FinishedRun, Settler

log = logging.getLogger("penstock.worker")

LEASE_POLL_INTERVAL: Final = 0.01  #: seconds between two checks whether a lease that may be over was renewed
QUIET_TIMEOUT: Final = 0.05  #: seconds


class Slots:
    """Starts leased jobs, and hands each outcome to the settler."""

    def __init__(self, engine: Engine, session: Session, runner: Runner, concurrency: int) -> None:
        self._session = session
        self._runner = runner
        self._codecs = engine.codecs or None
        self.concurrency = concurrency
        self.settler = Settler(engine, self._settled)
        self.quota = math.inf  #: jobs that may still be started
        self.is_draining = False  #: it takes no more jobs
        self.running: dict[str, RunningJob] = {}
        self.stuck: dict[str, FinishedRun] = {}  #: runs whose threads do not end, settled when this process has ended
        self.held: set[tuple[str, int, str]] = set()  #: worker, call number and id of jobs leased and not settled
        self._active = 0  #: runs that have not ended
        self._cancelled_early: set[str] = set()  #: jobs that were cancelled before their lease's answer came
        self.wake = asyncio.Event()  #: there is something to settle or to lease
        self.progressed = asyncio.Event()  #: a round trip has ended, or a thread overran
        self._loop = asyncio.get_running_loop()

    @property
    def busy(self) -> int:
        """Slots in use: by jobs that run, or that have ended and are not being settled yet."""
        return self._active + len(self.settler.waiting)

    @property
    def free(self) -> int:
        """Jobs that may be leased now; without more calls in flight."""
        free = self.concurrency - self.busy
        return free if self.quota is math.inf else int(min(free, self.quota))

    def start(self, leased: Leased, worker: str, number: int) -> None:
        """Start the jobs that this call of lease brought."""
        self.quota -= len(leased.leases)
        for job_id in leased.unreadable:
            self.held.add((worker, number, job_id))
            self.settler.waiting.append(FinishedRun(worker, number, job_id, Buried("unreadable_header", "{}")))
        for lease in leased.leases:
            context = self._runner.context(lease, worker, number)
            running = RunningJob(lease, worker, number, context)
            running.is_stopped = self.is_draining  # then it is released
            if lease.ready.cancelling or lease.id in self._cancelled_early:
                context.cancelling = running.is_stopped = True
            self.held.add((worker, number, lease.id))
            self.running[lease.id] = running
            self._active += 1
            # asyncio.create_task would look up the loop and name the task, which takes as long again.
            running.task = self._loop.create_task(self._run(running))

    async def _run(self, running: RunningJob) -> None:
        job_id = running.lease.id
        try:
            held = time.monotonic() < self._session.heartbeat.valid_until or await self.is_held(running)
            running.has_begun = True
            outcome: Outcome = await self._runner.run(running) if held and not running.is_stopped else Released()
        except BaseException as error:  # noqa: BLE001  (whatever it was, the slot must be given back and the job settled)
            is_ours = running.is_stopped and isinstance(error, asyncio.CancelledError)
            outcome = Released() if is_ours else Buried("worker_error", describe_error(error))
        if type(outcome) is not Completed or log.isEnabledFor(logging.DEBUG):
            try:
                log_outcome(running.lease, outcome)
            except Exception:
                log.exception("job %s: how it ended could not be logged", job_id)
        if self._codecs is not None:
            outcome = sealed(outcome, self._codecs, running.lease)
        if self.running.get(job_id) is running:
            del self.running[job_id]
        self.stuck.pop(job_id, None)
        self._active -= 1
        self.settler.waiting.append(FinishedRun(running.worker, running.number, job_id, outcome, running.shared_slot))
        self.wake.set()

    async def is_held(self, running: RunningJob) -> bool:
        """Whether a job that has not begun is still this worker's; it waits while that is not known.

        A process that stood still may read an answer that came long ago, and another worker may have its jobs by now.
        """
        while True:
            registration = self._session.registration
            if running.is_stopped or registration.is_lost or running.worker != registration.name:
                return False
            if time.monotonic() < self._session.heartbeat.valid_until:
                return True
            await asyncio.sleep(LEASE_POLL_INTERVAL)

    def _settled(self, runs: list[FinishedRun]) -> None:
        self._runner.settled(runs)
        self.held.difference_update([run.lease_key for run in runs])

    # Stopping

    def cancel(self, job_id: str, *, may_arrive: bool) -> None:
        """Cancel the job if it runs here, or when it arrives with an answer in flight if it `may_arrive`."""
        running = self.running.get(job_id)
        if running is not None:
            running.context.cancelling = True
            running.stop()
        elif may_arrive:
            self._cancelled_early.add(job_id)

    def forget_early_cancels(self) -> None:
        """Forget early cancels: no answer is in flight that could have these jobs."""
        self._cancelled_early.clear()

    def thread_overran(self, job_id: str, outcome: Outcome) -> None:
        """The thread of this job does not end: the job is settled with this outcome when its process has ended."""
        if (running := self.running.get(job_id)) is not None:
            if self._codecs is not None:
                outcome = sealed(outcome, self._codecs, running.lease)
            self.stuck[job_id] = FinishedRun(running.worker, running.number, job_id, outcome)
            self.progressed.set()

    def stop_all(self) -> None:
        """Stop the running jobs, as far as they can be stopped."""
        self.announce_shutdown()
        for running in list(self.running.values()):
            running.stop()

    def announce_shutdown(self) -> None:
        """Set the flag that jobs can read."""
        for running in self.running.values():
            running.context.shutting_down = True

    async def drained(self) -> None:
        """Wait until all jobs that can end have ended and are settled."""
        while self._active > len(self.stuck) or self.settler.waiting or self.settler.in_flight:
            self.progressed.clear()
            await self.progressed.wait()

    async def quiet(self) -> None:
        """Wait for a moment until no job runs here."""
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_TIMEOUT):
                await asyncio.sleep(0)
                await self.drained()
                await self.progressed.wait()
