"""Gives back leases that the server has but the worker does not hold.

A server that lost its last writes, in a failover or with a part of its disk, may have leases of jobs that the worker
has finished. No other worker would ever take such a job, because this worker is alive.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Self

from penstock.engine.engine import PAGE, Engine
from penstock.engine.read.worker_leases import leases_of
from penstock.errors import PenstockError

log = logging.getLogger("penstock.worker")

CHECK_INTERVAL: Final = 10.0  #: seconds between two comparisons without a request


class HeldJobs(NamedTuple):
    """The jobs that a worker held at one moment, and which of its lease calls had been answered."""

    worker: str
    last: int  #: number of its last call
    unanswered: frozenset[int]
    jobs: frozenset[tuple[str, int]]  #: id and call number of each job that runs, or has ended and is not settled yet

    @classmethod
    def of(cls, worker: str, last: int, unanswered: Iterable[int], jobs: Iterable[tuple[str, int]]) -> Self:
        return cls(worker, last, frozenset(unanswered), frozenset(jobs))

    def lacks(self, job_id: str, number: int) -> bool:
        """Whether the worker will never run or settle this lease: its call was answered, and the job is not held.

        That is for good, because a call that was answered is never made again.
        """
        return number <= self.last and number not in self.unanswered and (job_id, number) not in self.jobs


class LeaseCheck:
    """Compares the server's leases with the jobs that the worker holds: on request, and now and then."""

    def __init__(self, engine: Engine, held_jobs: Callable[[], HeldJobs]) -> None:
        self._engine = engine
        self._held_jobs = held_jobs
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Compare soon: the server may have lost something."""
        self._requested.set()

    async def run(self) -> None:
        """Compare until cancelled; after a failure, again in a second."""
        while True:
            try:
                async with asyncio.timeout(random.uniform(CHECK_INTERVAL * 0.8, CHECK_INTERVAL)):  # noqa: S311  (jitter)
                    await self._requested.wait()
            except TimeoutError:
                pass
            self._requested.clear()
            try:
                await release_lost(self._engine, self._held_jobs())
            except PenstockError as error:
                log.debug("the leases of this worker could not be compared: %s", error)
                await asyncio.sleep(1)
                self._requested.set()


async def release_lost(engine: Engine, held: HeldJobs) -> None:
    """Release the leases that the server has for this worker but the worker does not hold.

    The held jobs were listed before the server is asked, so jobs that are settled or leased meanwhile are left alone.
    """
    if not held.worker:
        return
    lost = [(job_id, number) for job_id, number in await leases_of(engine, held.worker) if held.lacks(job_id, number)]
    for start in range(0, len(lost), PAGE):
        page = lost[start : start + PAGE]
        words = await engine.release(held.worker, page)
        released = [job_id for (job_id, _), word in zip(page, words, strict=True) if word != "stale"]
        if released:
            log.warning(
                "the server had forgotten that this worker was done with %d jobs (%s): they go back and run again",
                len(released),
                ", ".join(released[:3]),
            )
