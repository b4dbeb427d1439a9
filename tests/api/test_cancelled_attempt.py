"""A job that was cancelled while it ran shows that attempt in its status."""

import asyncio

import pytest

from penstock import Job, JobCancelled, Penstock
from tests.app_helpers import in_state


async def _cancelled(app: Penstock) -> Job[None]:
    """A job that was cancelled while it ran."""

    @app.task
    async def endless() -> None:
        await asyncio.Event().wait()

    async with app.worker():
        job = await endless.enqueue()
        await in_state(job, "running")
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=5)
    return job


async def test_a_job_cancelled_while_it_ran_tells_of_that_attempt(app: Penstock) -> None:
    status = await (await _cancelled(app)).status()
    assert (status.state, status.attempt) == ("cancelled", 1)
    (attempt,) = status.attempts
    assert (attempt.number, attempt.outcome, attempt.worker, attempt.message) == (
        1,
        "cancelled",
        status.worker,
        status.reason,
    )
    assert attempt.started == status.started
    assert attempt.ended == status.finished


async def test_a_job_cancelled_before_it_ran_tells_of_no_attempt(app: Penstock) -> None:
    @app.task
    async def idle() -> None: ...

    job = await idle.enqueue()
    await job.cancel()
    status = await job.status()
    assert (status.state, status.attempt, status.attempts) == ("cancelled", 0, ())


async def test_a_cancelled_job_that_is_retried_begins_to_count_anew(app: Penstock) -> None:
    job = await _cancelled(app)
    await job.retry()
    status = await job.status()
    assert (status.state, status.attempt) == ("ready", 0)
