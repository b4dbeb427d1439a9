"""What always fails stops only itself: one settle, one schedule."""

import asyncio

import pytest

from penstock import Penstock, Snooze
from tests.api.looks import eventually, in_state
from tests.engine.factories import raw


async def test_a_settle_that_is_always_refused_holds_up_no_other_and_is_buried(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    """The server cannot keep a result, since the key for results is of another type."""
    ended: list[int] = []

    @app.task(name="kept")
    async def kept() -> int:
        return 7

    @app.task(name="fine")
    async def fine() -> None:
        ended.append(1)

    @app.task(name="snooze", retries=0)
    async def snooze() -> None:
        raise Snooze("1h")

    client, results = await raw(app.hub.engine), app.hub.engine.keys("results")
    async with app.worker(concurrency=10):
        await (await fine.enqueue()).result(timeout=10)
        await client.rename(results, results + b".away")
        await client.set(results, "no hash")
        refused = await kept.enqueue()
        later = [await snooze.enqueue() for _ in range(3)]
        jobs = [await fine.enqueue() for _ in range(40)]
        await eventually(lambda: "the server refuses what it ended in" in caplog.text)
        jobs.append(await fine.enqueue())
        await eventually(lambda: len(ended) == 42)
        await client.rename(results + b".away", results)
        for job in jobs:
            await in_state(job, "done", within=10)
        for job in later:
            await in_state(job, "scheduled", within=10)
        await in_state(refused, "dead", within=10)
        assert (await refused.status()).reason == "settle_refused"


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
