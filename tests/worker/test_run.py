"""Running a job: on the loop or in a thread, in a context of its own, under its time limit, inside the lifespan."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import (
    Job,
    JobContext,
    JobFailed,
    Penstock,
    PenstockError,
    current_job,
)
from tests.app_helpers import eventually, in_state, on_both
from tests.conftest import namespace


@on_both
async def test_async_tasks_run_on_the_loop_and_plain_ones_in_threads(app: Penstock) -> None:
    @app.task
    async def on_loop() -> int:
        return threading.get_ident()

    @app.task
    def in_thread() -> int:
        return threading.get_ident()

    async with app.worker():
        assert await (await on_loop.enqueue()).result(timeout=5) == threading.get_ident()
        assert await (await in_thread.enqueue()).result(timeout=5) != threading.get_ident()


def seen(job: JobContext) -> tuple[Any, ...]:
    return job.id, job.attempt, job.tags, job.state, job.cancelling, job.shutting_down, job.queue, job.task


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_current_job_knows_its_job(url: str, kind: str) -> None:
    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        yield "the state"

    app = Penstock(namespace(), url=url, lifespan=lifespan)
    seen_jobs: list[tuple[Any, ...]] = []
    fences: list[int] = []

    def look() -> None:
        seen_jobs.append(seen(current_job()))
        fences.append(current_job().fence)
        if current_job().attempt == 1:
            raise ValueError

    @app.task(name="async", tags=["red", "blue"], backoff=[0], queue="q")
    async def on_loop() -> None:
        look()

    @app.task(name="thread", tags=["red", "blue"], backoff=[0], queue="q")
    def in_thread() -> None:
        look()

    job: Job[None] = await (on_loop if kind == "async" else in_thread).enqueue()
    other: Job[None] = await (on_loop if kind == "async" else in_thread).using(tags=[]).enqueue()
    await app.run_until_idle(concurrency=1)
    mine = [one for one in seen_jobs if one[0] == job.id]
    assert mine == [(job.id, attempt, ("red", "blue"), "the state", False, False, "q", kind) for attempt in (1, 2)]
    assert {job[2] for job in seen_jobs if job[0] == other.id} == {()}
    assert sorted(set(fences)) == fences
    assert all(isinstance(fence, int) for fence in fences)
    client = await app.client.endpoint.client()
    await client.delete(*app.client.engine.all_keys())
    await app.aclose()


def test_current_job_outside_of_a_job_is_an_error() -> None:
    with pytest.raises(PenstockError, match="outside of a running job"):
        current_job()


async def test_every_job_runs_in_a_context_of_its_own(app: Penstock) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    @app.task
    async def on_loop(x: int) -> list[Any]:
        before = variable.get()
        variable.set(x)
        await asyncio.sleep(0)
        return [before, variable.get(), current_job().id]

    @app.task
    def in_thread(x: int) -> list[Any]:
        before = variable.get()
        variable.set(x)
        return [before, variable.get(), current_job().id]

    async with app.worker(concurrency=10):
        for task in (on_loop, in_thread):
            jobs = await app.enqueue_many(task.call(number) for number in range(1, 30))
            for number, job in enumerate(jobs, 1):
                assert await job.result(timeout=5) == [0, number, job.id]


async def test_the_lifespan_is_around_the_worker_and_its_last_job(url: str) -> None:
    steps: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[list[str]]:
        steps.append("begin")
        yield steps
        steps.append("end")

    app = Penstock(namespace(), url=url, lifespan=lifespan)

    @app.task
    async def slow() -> None:
        await asyncio.sleep(0.05)
        current_job().state.append("ran")

    job = await slow.enqueue()
    async with app.worker():
        await in_state(job, "running")
    assert steps == ["begin", "ran", "end"]
    client = await app.client.endpoint.client()
    await client.delete(*app.client.engine.all_keys())
    await app.aclose()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_timeout_fails_the_attempt(app: Penstock, kind: str) -> None:
    gone = threading.Event()

    @app.task(timeout="50ms", retries=1, backoff=[0])
    async def on_loop() -> None:
        await asyncio.sleep(60)

    @app.task(timeout="50ms", retries=1, backoff=[0])
    def in_thread() -> None:
        while not current_job().cancelling:
            gone.wait(0.005)

    job: Job[None] = await (on_loop if kind == "async" else in_thread).enqueue()
    quick: Job[None] = await on_loop.using(timeout="5ms", retries=0).enqueue()
    async with app.worker():
        with pytest.raises(JobFailed, match="TimeoutError"):
            await job.result(timeout=5)
        with pytest.raises(JobFailed, match="TimeoutError"):
            await quick.result(timeout=5)
    assert (await job.status()).attempt == 2


async def test_a_timeout_of_none_lifts_the_tasks(app: Penstock) -> None:
    @app.task(timeout="20ms", retries=0)
    async def slow() -> int:
        await asyncio.sleep(0.1)
        return 1

    job = await slow.using(timeout=None).enqueue()
    await app.run_until_idle()
    assert await job.result() == 1


async def test_an_expired_job_never_runs(app: Penstock) -> None:
    ran: list[int] = []

    @app.task
    async def note(x: int) -> None:
        ran.append(x)

    late = [await note.using(expires="1ms").enqueue(number) for number in range(5)]
    kept = await note.using(expires="1h").enqueue(9)
    last = (await late[-1].status()).expires
    assert last is not None
    await eventually(lambda: _now(app) > last)
    await app.run_until_idle()
    await kept.result(timeout=5)
    assert ran == [9]
    assert {(await job.status()).reason for job in late} == {"expired"}


def _now(app: Penstock) -> datetime:
    seconds, microseconds = app.client.endpoint.client_sync().time()
    return datetime.fromtimestamp(seconds + microseconds / 1e6, UTC)


async def test_a_job_may_enqueue_others_and_wait_for_them(app: Penstock) -> None:
    @app.task
    async def leaf(x: int) -> int:
        return x

    @app.task
    async def branch(depth: int) -> int:
        if depth == 0:
            return await (await leaf.enqueue(1)).result()
        jobs = await app.enqueue_many(branch.call(depth - 1) for _ in range(3))
        return sum(await asyncio.gather(*(job.result() for job in jobs)))

    @app.task
    def from_a_thread() -> int:
        return branch.enqueue_sync(2).result_sync(timeout=10)

    async with app.worker():
        assert await (await branch.enqueue(3)).result(timeout=10) == 27
        assert await (await from_a_thread.enqueue()).result(timeout=10) == 9
