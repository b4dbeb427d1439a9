"""Leases that the server has and their worker has not: they are given back.

A server that lost its last writes, in a failover or with a part of its disk, may say that a worker runs what it has
finished. Nobody else would ever take such a job, because its worker is alive.
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

CHECK: Final = 10.0  #: seconds between two comparisons that nothing has asked for


class Hand(NamedTuple):
    """What a worker had in hand at one moment, and the answers to which of its calls it had."""

    worker: str
    last: int  #: number of its last call
    unanswered: frozenset[int]
    jobs: frozenset[tuple[str, int]]  #: id and call number of what it runs, or has run and not settled yet

    @classmethod
    def of(cls, worker: str, last: int, unanswered: Iterable[int], jobs: Iterable[tuple[str, int]]) -> Self:
        return cls(worker, last, frozenset(unanswered), frozenset(jobs))

    def lacks(self, job_id: str, number: int) -> bool:
        """Whether it will never run or settle this lease: its call was answered, and the job is not in hand.

        That is for good, since a call that was answered is never made again.
        """
        return number <= self.last and number not in self.unanswered and (job_id, number) not in self.jobs


class LeaseCheck:
    """Compares what the server has with what the worker has in hand: when it is asked to, and now and then."""

    def __init__(self, engine: Engine, hand: Callable[[], Hand]) -> None:
        self._engine = engine
        self._hand = hand
        self._asked = asyncio.Event()

    def soon(self) -> None:
        """The server may have lost something."""
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled. One that fails is made again: after a second if it was asked for."""
        while True:
            try:
                async with asyncio.timeout(random.uniform(CHECK * 0.8, CHECK)):  # noqa: S311  (jitter)
                    await self._asked.wait()
            except TimeoutError:
                pass
            self._asked.clear()
            try:
                await release_lost(self._engine, self._hand())
            except PenstockError as error:
                log.debug("the leases of this worker could not be compared: %s", error)
                await asyncio.sleep(1)
                self._asked.set()


async def release_lost(engine: Engine, hand: Hand) -> None:
    """Give back what the server says this worker runs although it does not.

    What it had in hand is looked at before the server is asked, so what is settled or leased meanwhile is none of it.
    """
    if not hand.worker:
        return
    lost = [(job_id, number) for job_id, number in await leases_of(engine, hand.worker) if hand.lacks(job_id, number)]
    for start in range(0, len(lost), PAGE):
        page = lost[start : start + PAGE]
        words = await engine.release(hand.worker, page)
        gone = [job_id for (job_id, _), word in zip(page, words, strict=True) if word != "stale"]
        if gone:
            log.warning(
                "the server had forgotten that this worker was done with %d jobs (%s): they go back and run again",
                len(gone),
                ", ".join(gone[:3]),
            )
