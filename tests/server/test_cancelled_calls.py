"""Calls that are cancelled at any point: later answers reach the right callers, and no connection leaks."""

import asyncio
import contextlib
import random
from typing import Any

import pytest

from penstock import Job, JobNotFound, Penstock, Task
from penstock.model.header import Header
from tests.app_helpers import connections, eventually
from tests.engine.factories import new_job

AT_ONCE = 100


async def test_three_thousand_cancelled_calls_leave_no_trace(app: Penstock) -> None:
    await cancel_at_random(app, 3_000, random.Random(1))


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_a_hundred_thousand_cancelled_calls_leave_no_trace(app: Penstock) -> None:
    await cancel_at_random(app, 100_000, random.Random(2))


async def cancel_at_random(app: Penstock, how_many: int, chance: random.Random) -> None:
    @app.task
    async def echo(x: int) -> int:
        await asyncio.sleep(0)
        return x

    async with app.worker(queues="default", concurrency=20):
        await check(echo, AT_ONCE)
        await asyncio.gather(*(_missing(app, n) for n in range(AT_ONCE)))
        opened = await connections(app)
        for start in range(0, how_many, AT_ONCE):
            victims = [asyncio.create_task(_victim(app, echo, n, chance)) for n in range(start, start + AT_ONCE)]
            await _cancel_some_time(victims, chance)
        await check(echo, 1_000)
        await eventually(lambda: _at_most(app, opened + 10))
        await _each_job_is_its_own(echo, how_many)


async def check(echo: "Task[[int], int, Any]", how_many: int) -> None:
    """Every call gets exactly its own answer."""

    async def one(n: int) -> None:
        job = await echo.using(id=f"check-{how_many}-{n}").enqueue(n)
        assert job.id == f"check-{how_many}-{n}"
        assert job.created
        assert (await job.status()).id == job.id
        assert await job.result(timeout=20) == n

    for start in range(0, how_many, AT_ONCE):
        await asyncio.gather(*(one(n) for n in range(start, min(start + AT_ONCE, how_many))))


async def _victim(app: Penstock, echo: "Task[[int], int, Any]", n: int, chance: random.Random) -> None:
    """One of everything that awaits the server; what it gets before it is cancelled must be its own."""
    match n % 6:
        case 0:
            job = await echo.using(id=f"victim-{n}").enqueue(n)
            assert await job.result() == n
        case 1:
            jobs = await app.enqueue_many([echo.using(id=f"victim-{n}").call(n), echo.call(n)])
            assert [await job.result() for job in jobs] == [n, n]
        case 2:
            await app.client.engine.enqueue([new_job(f"direct-{n}", queue="elsewhere")])
            record = await app.client.views.job(f"direct-{n}")
            assert record is not None
            assert isinstance(record.header, Header)
            assert await app.client.engine.cancel([f"direct-{n}"]) == ["cancelled"]
        case 3:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(chance.uniform(0, 0.01)):
                    job = await echo.using(id=f"victim-{n}").enqueue(n)
                    assert (await job.status()).task == echo.name
                    assert await job.result() == n
        case 4:
            await _missing(app, n)
        case 5 if n % 60 == 5:
            await app.worker(queues="nothing-here").run()
        case _:
            job = echo.using(id=f"victim-{n}").enqueue_sync(n)
            assert await job.result() == n


async def _missing(app: Penstock, n: int) -> None:
    try:
        await app.get_job(f"nobody-{n}")
    except JobNotFound as error:
        assert f"nobody-{n}" in str(error)  # noqa: PT017  (it is cancelled as often as it gets here)


async def _cancel_some_time(victims: "list[asyncio.Task[None]]", chance: random.Random) -> None:
    """Some after so many turns of the loop, some after so many milliseconds, in any order."""
    chance.shuffle(victims)
    for number, victim in enumerate(victims):
        if number % 10 == 0:
            await asyncio.sleep(chance.choice([0, 0, 0, 0.0005, 0.002]))
        victim.cancel()
    results = await asyncio.gather(*victims, return_exceptions=True)
    wrong = [result for result in results if result is not None and not isinstance(result, asyncio.CancelledError)]
    assert wrong == []


async def _at_most(app: Penstock, how_many: int) -> bool:
    return await connections(app) <= how_many


async def _each_job_is_its_own(echo: "Task[[int], int, Any]", how_many: int) -> None:
    async def one(n: int) -> bool:
        job: Job[int] = echo.job(f"victim-{n}")
        try:
            assert await job.result(timeout=30) == n
        except JobNotFound:
            return False
        return True

    arrived = 0
    for start in range(0, how_many, 1_000):
        arrived += sum(await asyncio.gather(*(one(n) for n in range(start, min(start + 1_000, how_many)))))
    assert 0 < arrived < how_many
