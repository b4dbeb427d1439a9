"""What always fails stops only itself: one settle, one schedule."""

import asyncio
from typing import Any

import pytest

from penstock import Penstock, Snooze
from tests.api.looks import eventually, in_state
from tests.engine.factories import raw


class Odd(Snooze):
    """It says when to come back in a way that no server understands."""

    def __init__(self) -> None:
        super().__init__(1)
        self.delay: Any = "soon"


async def test_a_settle_that_is_always_refused_holds_up_no_other_and_is_buried(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="odd")
    async def odd() -> None:
        raise Odd

    @app.task(name="fine")
    async def fine(x: int) -> int:
        return x

    @app.task(name="snooze", retries=0)
    async def snooze() -> None:
        raise Snooze("1h")

    async with app.worker(concurrency=10):
        bad = await odd.enqueue()
        later = [await snooze.enqueue() for _ in range(3)]
        jobs = [await fine.enqueue(n) for n in range(40)]
        assert [await job.result(timeout=10) for job in jobs] == list(range(40))
        for job in later:
            await in_state(job, "scheduled", within=10)
        await in_state(bad, "dead", within=10)
        assert await (await fine.enqueue(7)).result(timeout=10) == 7
    assert "the server refuses what it ended in" in caplog.text


@pytest.mark.parametrize("many", [1, 25])
async def test_schedules_that_cannot_be_read_stop_no_other(app: Penstock, many: int) -> None:
    ticked = asyncio.Event()

    @app.task(name="tick")
    async def tick() -> None:
        ticked.set()

    engine = app.hub.engine
    for n in range(many):
        await app.schedule(f"bad{n:02}").set(tick.call(), every="1s")
    client, crons = await raw(engine), engine.keys("crons")
    for n in range(many):
        await client.hset(crons, f"spec\x1fbad{n:02}", b"no schedule")
    await eventually(lambda: _all_due(app, many), within=10)
    await app.schedule("good").set(tick.call(), every="1s")
    async with app.worker():
        async with asyncio.timeout(10):
            await ticked.wait()
    for n in range(many):
        await app.schedule(f"bad{n:02}").remove()


async def _all_due(app: Penstock, many: int) -> bool:
    return len((await app.hub.engine.due_crons(100)).crons) >= many
