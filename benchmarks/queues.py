"""What many queues cost: `python -m benchmarks.queues`, about a minute; callgrind has to be there for instructions.

The instructions of one lease with 100,000 names of queues and with ten, and of one job on its way through lease and
complete when each job has a queue of its own and when all share one. Then the rate at which a worker drains these.
"""

import asyncio
import secrets
import shutil
import statistics
import time
from typing import Any, Final

from benchmarks.instructions import Round, counted
from benchmarks.server import running
from penstock import Penstock

NAMES: Final = 100_000
JOBS: Final = 5_000
LEASES: Final = 50  #: with so many jobs each, as a worker with ten slots makes them
WANT: Final = 10
TURNS: Final = 3
SLOTS: Final = (10, 100)  #: of workers; 100 is the default


async def lease_with(names: int) -> float:
    """Thousand instructions of a lease, with so many names known and a job in some of them."""
    with counted() as server:
        run = Round(server.url)
        await run.register()
        client: Any = await run.app.client.engine.script_client.endpoint.client()
        for start in range(0, names, 10_000):
            known = {f"tenant-{n}": "" for n in range(start, min(start + 10_000, names))}
            await client.hset(run.app.client.engine.keys("queues"), mapping=known)
        step = max(names // JOBS, 1)
        await run.app.enqueue_many(run.nothing.using(queue=f"tenant-{n * step % names}").call(n) for n in range(JOBS))
        await run.leases(5, WANT)
        instructions = await server.count(run.leases(LEASES, WANT)) / LEASES
        await run.app.aclose()
    return instructions / 1_000


async def job_with(queues: int) -> float:
    """Thousand instructions of a job that is leased and completed, with so many queues."""
    with counted() as server:
        run = Round(server.url)
        await run.register()
        calls = (run.nothing.using(queue=f"tenant-{secrets.token_hex(4)}-{n % queues}").call(n) for n in range(JOBS))
        if queues == 1:
            calls = (run.nothing.using(queue="tenant").call(n) for n in range(JOBS))
        await run.app.enqueue_many(calls)
        instructions = await server.count(run.drain(JOBS)) / JOBS
        await run.app.aclose()
    return instructions / 1_000


class Drain:
    """A worker in this process, of all queues, that runs jobs which do nothing."""

    def __init__(self, url: str) -> None:
        self.app = Penstock("drain", url=url)
        self._left = 0
        self._is_empty = asyncio.Event()

        @self.app.task(name="async")
        async def nothing() -> None:
            self._left -= 1
            if not self._left:
                self._is_empty.set()

        self._nothing = nothing

    async def rate(self, queues: int, slots: int) -> float:
        """Jobs a second, all settled, when as many jobs are on so many queues."""
        salt = secrets.token_hex(4)
        self._left = JOBS
        self._is_empty.clear()
        jobs = (self._nothing.using(queue=f"tenant-{salt}-{n % queues}").call() for n in range(JOBS))
        await self.app.enqueue_many(jobs)
        start = time.perf_counter()
        async with self.app.worker(queues="*", concurrency=slots):
            await self._is_empty.wait()
        return JOBS / (time.perf_counter() - start)


async def rates(slots: int) -> tuple[float, float]:
    """Jobs a second on one queue, and on as many queues as jobs: medians of turns on one server."""
    with running() as (server, _):
        drain = Drain(server.url)
        await drain.rate(1, slots)
        turns = [(await drain.rate(1, slots), await drain.rate(JOBS, slots)) for _ in range(TURNS)]
        await drain.app.aclose()
    shared, own = zip(*turns, strict=True)
    return statistics.median(shared), statistics.median(own)


async def main() -> None:
    if not shutil.which("callgrind_control"):
        raise SystemExit("this needs valgrind: install Debian's package of that name")
    few, many = await lease_with(10), await lease_with(NAMES)
    print(f"a lease of {WANT} jobs, thousand instructions: {few:.0f} with 10 names, {many:.0f} with {NAMES:,}")
    print(f"  {many / few:.2f} times as many")
    shared, own = await job_with(1), await job_with(JOBS)
    print(f"lease and complete, thousand instructions a job: {shared:.1f} on one queue, {own:.1f} on {JOBS:,}")
    print(f"  {shared / own:.0%} of the rate, where the server is what limits it")
    for slots in SLOTS:
        shared, own = await rates(slots)
        print(f"a worker with {slots} slots, jobs a second: {shared:,.0f} on one queue, {own:,.0f} on {JOBS:,}")
        print(f"  {own / shared:.0%} of the rate")


if __name__ == "__main__":
    asyncio.run(main())
