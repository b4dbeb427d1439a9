"""A lane whose jobs wait in more queues than the short list header of msgpack can count."""

from typing import Any

import msgspec
import pytest

from penstock.engine.engine import Engine
from penstock.engine.read.lane_views import LaneViews
from penstock.engine.repair.reconcile import reconcile
from tests.engine.factories import TestWorker, enqueue, lane, new_job, raw

STOPPED = lane("wide", 1)


async def _widen(engine: Engine, queues: int) -> None:
    """A lane that is full, and has a job that waits in each of so many queues, as its record says."""
    client: Any = await raw(engine)
    head = msgspec.msgpack.decode(await client.hget(engine.keys("lanes"), "lane:wide"))[:5]
    rows = [value for n in range(queues) for value in (f"q{n}", 1, 0, "")]
    await client.hset(engine.keys("lanes"), "lane:wide", msgspec.msgpack.encode([*head, *rows]))


@pytest.mark.parametrize("queues", [16_381, 16_382])
async def test_a_lane_of_any_number_of_queues_is_read_as_it_was_written(engine: Engine, queues: int) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("holder", lanes=[STOPPED]))
    (holder,) = await worker.lease()
    await _widen(engine, queues)
    for n, job_id in enumerate(("waits", "waits-too"), 1):
        await enqueue(engine, new_job(job_id, queue="next", lanes=[STOPPED]))
        status = await LaneViews(engine.script_client).lane("lane:wide")
        assert (status.in_use, status.waiting) == (1, queues + n)
    await reconcile(engine)  # nobody waits in the queues that were made up
    assert await worker.complete(holder) == "ok"
    assert [lease.id for lease in await worker.lease(2)] == ["waits"]
