"""A worker without work: how little it asks of the server."""

import asyncio

from penstock import (
    Penstock,
)
from tests.app_helpers import commands


async def test_an_idle_worker_sends_less_than_a_command_per_second(app: Penstock) -> None:
    @app.task
    async def quick() -> int:
        return 1

    async with app.worker():
        await (await quick.enqueue()).result(timeout=5)
        await asyncio.sleep(0.2)  # the last rounds of what just ran
        before = await commands(app)
        await asyncio.sleep(5)  # the time over which it is measured
        assert await commands(app) - 1 - before < 5  # one was the question


async def test_a_job_for_an_idle_worker_takes_three_calls(app: Penstock) -> None:
    started: asyncio.Queue[None] = asyncio.Queue()

    @app.task
    async def quick() -> None:
        started.put_nowait(None)

    async with app.worker():
        await asyncio.sleep(0.2)  # its first rounds
        before = await commands(app)
        for _ in range(20):
            await quick.enqueue()
            await started.get()
            await asyncio.sleep(0.05)  # until it is settled
        assert await commands(app) - 1 - before <= 3 * 20 + 5  # enqueue, lease, complete; and what keeps a worker alive


async def test_an_idle_worker_sends_less_than_a_command_per_second_in_the_long_run(app: Penstock) -> None:
    from tests.app_helpers import commands

    async with app.worker():
        await asyncio.sleep(11)
        before = await commands(app)
        await asyncio.sleep(30)
        assert (await commands(app) - 1 - before) / 30 < 1
