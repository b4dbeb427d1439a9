"""A job for each row, and their results in the order of the rows."""

import asyncio
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, TextIO

from penstock.api.batch import Batch
from penstock.api.job import Job
from penstock.api.progress import Progress
from penstock.api.task import Call, Task
from penstock.client.pages import iterate
from penstock.errors import PenstockError, Unavailable, UnsuitableServer


async def map_rows(
    batch: Batch, task: Task[..., Any, Any], rows: Iterable[Any] | AsyncIterable[Any], *, progress: bool
) -> list[Any]:
    """Results, or the errors of jobs that have none, in the order of the rows."""

    async def calls() -> AsyncIterator[Call[Any]]:
        async for row in iterate(rows):
            yield task.call(row)

    async with show_progress(batch, sys.stderr if progress else None):
        async with batch:
            jobs = await batch.add_many(calls())
        outcomes = {job.id: await _outcome(job) async for job in batch.as_completed()}
    # If `unique` or `id` matches an existing job, that job is not in the batch: await it by itself.
    return [outcomes[job.id] if job.id in outcomes else await _outcome(job) for job in jobs]


async def _outcome(job: Job[Any]) -> Any:
    try:
        return await job.result()
    except (Unavailable, UnsuitableServer):
        raise
    except PenstockError as error:
        return error


@asynccontextmanager
async def show_progress(batch: Batch, stream: TextIO | None) -> AsyncIterator[None]:
    """Show a batch's progress while the block runs."""
    if stream is None:
        yield
        return
    progress = Progress(stream)
    watching = asyncio.create_task(_watch(batch, progress))
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    progress.show(await batch.status(), 0)


async def _watch(batch: Batch, progress: Progress) -> None:
    while True:
        await asyncio.sleep(progress.pause)
        with suppress(PenstockError):  # shown again when the server can be reached
            progress.show(await batch.status(), await batch.running())
