"""The heartbeat of a worker inside a program: a task that blocks the loop costs no lease."""

import asyncio
import time

from penstock import (
    Penstock,
    current_job,
)
from tests.app_helpers import twin


async def test_a_task_that_blocks_the_loop_costs_no_lease(app: Penstock) -> None:
    @app.task(retries=0)
    async def rude() -> int:
        time.sleep(1.0)  # noqa: ASYNC251  (that is the point)
        return current_job().attempt

    job = await rude.enqueue()
    async with twin(app) as elsewhere:
        timer = asyncio.to_thread(asyncio.run, _reaping(elsewhere.name, str(app.settings.url), 1.5))
        reaping = asyncio.create_task(timer)
        async with app.worker(lease="300ms"):
            assert await job.result(timeout=5) == 1
        await reaping
    assert (await job.status()).attempts == ()


async def _reaping(name: str, url: str, seconds: float) -> None:
    """Another worker's timer, which looks for dead workers all the time."""
    app = Penstock(name, url=url)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await app.client.engine.reap(300)
        await asyncio.sleep(0.05)
    await app.aclose()
