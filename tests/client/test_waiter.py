"""Waiting for results: many at once, without polling, across lost connections, and in threads."""

import asyncio
import contextlib
import threading
import time

import pytest

from penstock import (
    Penstock,
    PenstockError,
)
from penstock.engine.engine import PAGE
from tests.app_helpers import commands, connections, eventually, in_state, kill_connections, on_both, own_app
from tests.conftest import namespace
from tests.engine.factories import raw
from tests.servers import Server, running


@on_both
async def test_a_thousand_waiters_each_get_their_own_result(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    jobs = await app.enqueue_many(echo.call(number) for number in range(1_000))
    open_before = await connections(app)
    waiting = [asyncio.create_task(job.result(timeout=20)) for job in jobs]
    await eventually(lambda: _awaited(app, 1_000))
    assert await connections(app) <= open_before + 1_000 / PAGE + 1
    async with app.worker():
        assert await asyncio.gather(*waiting) == list(range(1_000))
    assert await _awaited(app, 0)


async def _awaited(app: Penstock, how_many: int) -> bool:
    client = await app.client.endpoint.client()
    return await client.hlen(app.client.engine.keys("waiting")) - 1 == how_many


async def test_a_caller_that_gives_up_waiting_disturbs_no_other(app: Penstock) -> None:
    gate = asyncio.Event()

    @app.task
    async def slow() -> str:
        await gate.wait()
        return "done"

    job = await slow.enqueue()
    async with app.worker():
        impatient = [asyncio.create_task(job.result(timeout=0.02)) for _ in range(10)]
        patient = asyncio.create_task(job.result(timeout=10))
        results = await asyncio.gather(*impatient, return_exceptions=True)
        assert {type(result) for result in results} == {TimeoutError}
        gone = asyncio.create_task(job.result())
        await asyncio.sleep(0)
        gone.cancel()
        gate.set()
        assert await patient == "done"


async def test_a_timeout_is_kept_and_the_job_goes_on(app: Penstock) -> None:
    @app.task(delay="1h")
    async def later() -> None: ...

    job = await later.enqueue()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await job.result(timeout=0.2)
    with pytest.raises(TimeoutError, match=job.id):
        await asyncio.to_thread(job.result_sync, 0.2)
    assert 0.4 <= time.monotonic() - began < 1.5
    assert (await job.status()).state == "scheduled"


async def test_waiting_sends_nothing_to_the_server(app: Penstock) -> None:
    gate = asyncio.Event()

    @app.task
    async def slow(x: int) -> int:
        await gate.wait()
        return x

    jobs = [await slow.enqueue(number) for number in range(50)]
    async with app.worker():
        waiting = [asyncio.create_task(job.result()) for job in jobs]
        blocking = asyncio.create_task(asyncio.to_thread(jobs[0].result_sync, 10))
        await eventually(lambda: _awaited(app, 50))
        for job in jobs:
            await in_state(job, "running")
        before = await commands(app)
        await asyncio.sleep(1.5)  # the time over which nothing may happen
        assert await commands(app) - before <= 5
        gate.set()
        assert await asyncio.gather(*waiting) == list(range(50))
        assert await blocking == 0


async def test_a_result_comes_soon_after_the_end(app: Penstock) -> None:
    @app.task
    async def now() -> float:
        return time.monotonic()

    async with app.worker():
        await (await now.enqueue()).result(timeout=5)
        late = [time.monotonic() - await (await now.enqueue()).result(timeout=5) for _ in range(20)]
    assert sorted(late)[10] < 0.1


async def test_waiters_survive_the_loss_of_every_connection(app: Penstock) -> None:
    gate = asyncio.Event()

    @app.task
    async def slow() -> int:
        await gate.wait()
        return 1

    job = await slow.enqueue()
    async with app.worker():
        waiting = asyncio.create_task(job.result(timeout=10))
        blocking = asyncio.create_task(asyncio.to_thread(job.result_sync, 10))
        await in_state(job, "running")
        await kill_connections(app)
        gate.set()
        assert await waiting == 1
        assert await blocking == 1


async def test_a_result_is_delivered_across_a_restart_of_the_server() -> None:
    with running(Server("--appendonly", "yes", "--appendfsync", "always")) as server:
        async with own_app(server, namespace()) as app:
            gate = asyncio.Event()

            @app.task
            async def slow(x: int) -> int:
                await gate.wait()
                return x

            jobs = await app.enqueue_many(slow.call(number) for number in range(20))
            async with app.worker():
                waiting = [asyncio.create_task(job.result(timeout=20)) for job in jobs]
                blocking = asyncio.create_task(asyncio.to_thread(jobs[0].result_sync, 20))
                for job in jobs:
                    await in_state(job, "running")
                server.kill()
                gate.set()
                await asyncio.to_thread(server.restart)
                assert await asyncio.gather(*waiting) == list(range(20))
                assert await blocking == 0


async def test_threads_wait_side_by_side(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    jobs = await app.enqueue_many(echo.call(number) for number in range(20))
    results: dict[int, int] = {}

    def wait(number: int) -> None:
        results[number] = jobs[number].result_sync(timeout=10)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    await eventually(lambda: _awaited(app, 20))
    async with app.worker():
        for thread in threads:
            await asyncio.to_thread(thread.join, 10)
    assert results == {number: number for number in range(20)}


async def test_closing_the_app_ends_the_waiting_with_an_error(app: Penstock) -> None:
    @app.task(delay="1h")
    async def later() -> None: ...

    job = await later.enqueue()
    waiting = asyncio.create_task(job.result())
    await eventually(lambda: _awaited(app, 1))
    await app.aclose()
    with pytest.raises(PenstockError, match="closed"):
        await waiting


async def test_asking_again_and_again_leaves_one_name_to_be_told(app: Penstock) -> None:
    @app.task(delay="1h")
    async def later() -> None: ...

    job = await later.enqueue()

    def ask() -> None:
        for _ in range(50):
            with contextlib.suppress(TimeoutError):
                job.result_sync(timeout=0.001)

    await asyncio.to_thread(ask)
    waiting = await (await raw(app.client.engine)).hget(app.client.engine.keys("waiting"), job.id)
    assert waiting.count(b"\x1f") <= 2
