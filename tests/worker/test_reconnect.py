"""A worker goes on after its connections were cut and its server was restarted or emptied."""

import asyncio
import time
from collections import Counter
from typing import Any

from penstock import (
    Penstock,
)
from tests.app_helpers import eventually, kill_connections, own_app, twin
from tests.conftest import namespace
from tests.servers import Server, running


async def test_a_worker_goes_on_after_every_connection_was_killed(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    async with app.worker(), twin(app) as killer:
        for number in range(5):
            jobs = [asyncio.create_task(_round(echo, 10 * number + i)) for i in range(10)]
            await kill_connections(killer)
            assert await asyncio.gather(*jobs) == [10 * number + i for i in range(10)]


async def _round(task: Any, x: int) -> int:
    job = await task.enqueue(x)
    return int(await job.result(timeout=5))


async def test_a_worker_goes_on_within_seconds_after_a_restart_of_the_server() -> None:
    with running(Server("--appendonly", "yes", "--appendfsync", "always")) as server:
        async with own_app(server, namespace()) as app:
            ran: Counter[int] = Counter()

            @app.task
            async def note(x: int) -> int:
                ran[x] += 1
                await asyncio.sleep(0.01)
                return x

            async with app.worker(concurrency=5):
                jobs = await app.enqueue_many(note.call(number) for number in range(100))
                await eventually(lambda: len(ran) > 20)
                server.kill()
                await asyncio.to_thread(server.restart)
                began = time.monotonic()
                assert await asyncio.gather(*(job.result(timeout=10) for job in jobs)) == list(range(100))
                assert await (await note.enqueue(100)).result(timeout=5) == 100
                assert time.monotonic() - began < 5
            assert ran == Counter(range(101))


async def test_a_worker_goes_on_when_the_server_came_back_empty() -> None:
    with running(Server("--appendonly", "no")) as server:
        async with own_app(server, namespace()) as app:

            @app.task
            async def echo(x: int) -> int:
                return x

            async with app.worker():
                assert await (await echo.enqueue(1)).result(timeout=5) == 1
                server.kill()
                await asyncio.to_thread(server.restart)
                assert await (await echo.enqueue(2)).result(timeout=5) == 2
