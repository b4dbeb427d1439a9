"""Stopping a worker inside a program: running jobs finish, or go back."""

import asyncio
import threading
import time

import pytest

from penstock import (
    Job,
    Penstock,
    current_job,
)
from tests.app_helpers import eventually, in_state
from tests.engine.factories import header_of


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_worker_that_stops_lets_running_jobs_finish_and_takes_no_more(app: Penstock, kind: str) -> None:
    gate = threading.Event()
    steps: list[bool] = []

    @app.task
    async def on_loop() -> int:
        await asyncio.to_thread(gate.wait, 5)
        steps.append(current_job().shutting_down)
        return 1

    @app.task
    def in_thread() -> int:
        gate.wait(5)
        steps.append(current_job().shutting_down)
        return 1

    task = on_loop if kind == "async" else in_thread
    first: Job[int] = await task.enqueue()
    worker = app.worker(concurrency=1)
    working = asyncio.create_task(worker.run())
    await in_state(first, "running")
    second: Job[int] = await task.enqueue()
    worker.stop()
    await eventually(lambda: worker._slots.is_draining)
    gate.set()
    await working
    assert steps == [True]
    assert await first.result() == 1
    assert (await second.status()).state == "ready"
    assert await app.client.views.workers() == []
    await app.run_until_idle()
    assert await second.result() == 1


async def test_jobs_that_outlast_the_grace_go_back_without_using_an_attempt(app: Penstock) -> None:
    steps: list[str] = []
    begun = asyncio.Event()

    @app.task(retries=0)
    async def slow() -> int:
        if steps:
            return current_job().attempt
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            steps.append(f"stopped: {current_job().cancelling}")
            raise
        return 0

    first, second = await slow.enqueue(), await slow.enqueue()
    began = time.monotonic()
    async with app.worker(grace="50ms", concurrency=1):
        await begun.wait()
    assert time.monotonic() - began < 2
    header = await header_of(app.client.engine, first.id)
    assert (header.state, header.attempt, header.releases) == ("ready", 0, 1)
    assert header.seq < (await header_of(app.client.engine, second.id)).seq
    await app.run_until_idle()
    assert await first.result() == 1
    assert steps == ["stopped: False"]


async def test_a_cancelled_worker_stops_as_orderly(app: Penstock) -> None:
    gate = asyncio.Event()

    @app.task
    async def slow() -> int:
        await gate.wait()
        return 1

    job = await slow.enqueue()
    working = asyncio.create_task(app.worker().run())
    await in_state(job, "running")
    working.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert await job.result() == 1
    assert await app.client.views.workers() == []


async def test_an_error_in_the_program_around_it_stops_the_worker_and_is_raised(app: Penstock) -> None:
    @app.task
    async def quick() -> int:
        return 1

    job = await quick.enqueue()
    with pytest.raises(LookupError):
        await _stumble(app, job)
    assert await app.client.views.workers() == []
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-renew"]


async def _stumble(app: Penstock, job: Job[int]) -> None:
    async with app.worker():
        await job.result(timeout=5)
        raise LookupError


async def test_a_worker_that_is_cancelled_again_while_it_drains_does_not_live_on(app: Penstock) -> None:
    @app.task
    async def slow() -> None:
        await asyncio.sleep(3600)

    job = await slow.enqueue()
    working = asyncio.create_task(app.worker(lease="300ms").run())
    await in_state(job, "running")
    for _ in range(2):
        working.cancel()
        await asyncio.sleep(0.05)
    await asyncio.wait([working])
    try:
        assert not [thread for thread in threading.enumerate() if thread.name == "penstock-renew"]
        await in_state(job, "ready", within=3)
    finally:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
