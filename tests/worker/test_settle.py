"""Settling: outcomes are sent in bounded pages."""

import asyncio

from tests.app_helpers import eventually, own_app
from tests.conftest import namespace
from tests.servers import Server, running


async def test_many_large_results_at_once_are_settled_in_bounded_pages() -> None:
    with running(Server("--appendonly", "no")) as server:
        async with own_app(server, namespace(), deadline="400ms") as app:
            gate = asyncio.Event()

            @app.task
            async def heavy() -> bytes:
                await gate.wait()
                return b"x" * 1_000_000

            jobs = await app.enqueue_many(heavy.call() for _ in range(150))
            async with app.worker(concurrency=150, grace=0.1) as worker:
                await eventually(lambda: worker._slots.busy == 150)
                gate.set()
                await eventually(lambda: worker._slots.settler.settled == 150, within=15)
            assert len(jobs) == 150
