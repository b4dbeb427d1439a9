"""Rows that come one by one, are worked on a few at a time, and one report at the end.

    python examples/etl_batch.py

What was wanted: a large file is read while its rows are already being worked on; never more than so many at once, for
the database behind it; somebody wants to see how far it is; and when the last row is done, and only then, and only
once, a report.

How Penstock does it: a batch is open while its block runs, and its members start as they are added. `limit` is how
many of them may run at once, wherever the workers are. `then` is enqueued once, in the same step in which the last
member ends. Rows that fail for good are counted, not lost: they are in the dead letter, and `batch.retry_failed()`
runs them again.
"""

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

from penstock import Batch, BatchStatus, JobFailed, Penstock

ROWS, LIMIT = 400, 8
CLEAR = "\r\x1b[2K" if sys.stdout.isatty() else ""  #: the line of the bar

app = Penstock("etl")
running, most = 0, 0


@app.task(name="load", retries=0)
async def load(amount: str) -> float:
    """Turn a row into money; some of them are not any."""
    global running, most  # noqa: PLW0603  (all of them run in this process here)
    running, most = running + 1, max(most, running + 1)
    await asyncio.sleep(random.uniform(0, 0.04))  # noqa: S311  (the database)
    running -= 1
    return float(amount)


@app.task(name="report")
async def report(status: BatchStatus) -> str:
    return f"{status.name}: {status.done} of {status.total} rows loaded, {status.dead} could not be read"


async def rows() -> AsyncIterator[str]:
    """A source that takes its time."""
    for number in range(1, ROWS + 1):
        await asyncio.sleep(0.001)
        yield "many" if number % 100 == 0 else f"{number}.50"


async def show(batch: Batch) -> None:
    """A live bar, until it is cancelled; only on a terminal."""
    while CLEAR:
        status = await batch.status()
        done = status.total - status.pending
        bar = "█" * (40 * done // ROWS)
        print(f"{CLEAR}{bar:░<40} {done:>4} of {status.total} so far ", end="", flush=True)
        await asyncio.sleep(0.1)


async def main() -> None:
    async with app, app.worker(concurrency=50):
        async with app.batch("orders.csv", limit=LIMIT, then=report) as batch:
            bar = asyncio.create_task(show(batch))
            async for amount in rows():
                await batch.add(load.call(amount))
        total = 0.0
        async for job in batch.as_completed():
            with suppress(JobFailed):
                total += await job.result()
        bar.cancel()
        report_job = await app.get_job(f"{batch.id}@then-1")  # the id of the job that `then` makes
        print(CLEAR + await report_job.result(timeout=60))
        print(f"in all {total:,.2f}; never more than {most} rows at once")


if __name__ == "__main__":
    asyncio.run(main())
