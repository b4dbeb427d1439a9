"""Progress: shown in the status, and written four times a second at most."""

import asyncio
import threading
import time
from typing import Any

from penstock import (
    Job,
    Penstock,
    current_job,
)
from tests.app_helpers import eventually


async def test_progress_is_shown_in_the_status(app: Penstock) -> None:
    gate = asyncio.Event()
    passed = threading.Event()

    @app.task
    async def slow() -> None:
        await current_job().progress(1, 3, "one of three")
        await gate.wait()

    @app.task
    def blocking() -> None:
        current_job().progress_sync(0.5, message="half")
        passed.wait(5)

    async with app.worker():
        job, other = await slow.enqueue(), await blocking.enqueue()
        await eventually(lambda: _progress(job))
        await eventually(lambda: _progress(other))
        assert (await job.status()).progress == (1, 3, "one of three")
        assert (await other.status()).progress == (0.5, None, "half")
        gate.set()
        passed.set()
        await job.result(timeout=5)
        await other.result(timeout=5)


async def _progress(job: Job[Any]) -> bool:
    return (await job.status()).progress is not None


async def _number_of_events(app: Penstock, kind: str) -> int:
    return len([event async for event in app.events(since="0", kinds=[kind]).kept()])


async def test_progress_is_written_four_times_a_second_at_most_and_the_last_is_kept(app: Penstock) -> None:
    @app.task(name="count")
    async def count() -> float:
        began = time.monotonic()
        for number in range(200):
            await current_job().progress(number + 1, 200, "going")
            await asyncio.sleep(0.005)
        return time.monotonic() - began

    job = await count.enqueue()
    await app.run_until_idle()
    took = await job.result(timeout=0)
    status = await job.status()
    assert status.progress == (200, 200, "going")
    assert 2 <= await _number_of_events(app, "progress") <= took * 4 + 2


async def test_the_last_progress_is_sent_while_the_job_goes_on(app: Penstock) -> None:
    go = asyncio.Event()

    @app.task(name="count")
    async def count() -> None:
        await current_job().progress(1, 2)
        await current_job().progress(2, 2)
        await go.wait()

    job = await count.enqueue()
    async with app.worker(), asyncio.timeout(30):
        while (await job.status()).progress != (2, 2, ""):  # noqa: ASYNC110  (the server knows)
            await asyncio.sleep(0.02)
        go.set()


async def test_progress_from_a_thread_is_paced_too(app: Penstock) -> None:
    @app.task(name="count")
    def count() -> None:
        for number in range(100):
            current_job().progress_sync(number + 1, 100)

    job = await count.enqueue()
    await app.run_until_idle()
    assert (await job.status()).progress == (100, 100, "")
    assert await _number_of_events(app, "progress") <= 10
