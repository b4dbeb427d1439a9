"""Purging a queue with very many waiting jobs, while others enqueue: every script stays short."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock import Penstock
from penstock.engine.engine import PAGE, Engine, NewJob
from penstock.engine.repair.audit import audit
from penstock.engine.transport.script_client import ScriptCall
from tests.conftest import namespace
from tests.costs import TOO_LONG_US, slow_each_time
from tests.engine.factories import new_job
from tests.servers import Server
from tests.stopwatch import Stopwatch

MANY = int(os.environ.get("PURGED_JOBS", "300000"))
LOCKS = 1_000


@pytest.fixture
async def app(watched_server: Server) -> AsyncIterator[Penstock]:
    async with Penstock(namespace(), url=watched_server.url) as made:
        yield made


def _job(number: int) -> NewJob:
    """Most have no options; the others wait for a lock or a time, or have a priority, an expiry or a unique key."""
    match number % 10:
        case 0:
            return new_job(f"{number}", queue="mail", lanes=[f"lock:{number // 10 % LOCKS}"])
        case 1:
            return new_job(f"{number}", queue="mail", due=3_600_000)
        case 2:
            return new_job(f"{number}", queue="mail", priority=number % 100, expires=7_100_000)
        case 3:
            return new_job(f"{number}", queue="mail", unique=f"{number}")
        case _:
            return new_job(f"{number}", queue="mail")


async def _purge(app: Penstock, number: int) -> int:
    """Fill the queue and purge it while others enqueue there and elsewhere; how many jobs they added to it."""
    engine, purged, added = app.client.engine, asyncio.Event(), 0

    async def enqueue() -> None:
        nonlocal added
        while not purged.is_set():
            await engine.enqueue([new_job(queue="beside") for _ in range(PAGE)])
            await engine.enqueue([new_job(queue="mail", lanes=["lock:0"])])
            added += 1

    for start in range(0, number, PAGE):
        await engine.enqueue([_job(n) for n in range(start, start + PAGE)])
    enqueuing = asyncio.create_task(enqueue())
    assert await app.queue("mail").purge() >= number
    purged.set()
    await enqueuing
    return added


async def test_a_purge_removes_all_jobs_that_waited_while_other_clients_enqueue(app: Penstock) -> None:
    number = 500
    added = await _purge(app, number)
    counts = (await app.queue("mail").status()).counts
    assert sum(counts.values()) == number + added
    for start in range(0, number, PAGE):
        ids = [str(n) for n in range(start, start + PAGE)]
        assert set(await app.client.engine.cancel(ids)) == {
            "cancelled"
        }  # what waited would be cancelled now, and be counted
    assert (await app.queue("mail").status()).counts == counts
    assert await audit(app.client.engine) == []


@pytest.mark.long
@pytest.mark.timeout(1_800)
async def test_no_script_takes_long_while_a_queue_of_300_000_jobs_is_purged_and_others_enqueue(
    app: Penstock, watched_server: Server
) -> None:
    engine = app.client.engine
    stopwatch = Stopwatch(engine, watched_server, TOO_LONG_US)
    _in_turn(engine)

    async def again() -> None:
        await engine.enqueue([new_job("first")])
        await engine.cancel(["first"])
        client: Any = await engine.script_client.endpoint.client()
        await client.slowlog_reset()  # a fresh server has been given its scripts, which is not what is measured here
        print(f"{2 * await _purge(app, MANY):,} calls of enqueue beside a purge of {MANY:,} jobs")

    await again()
    assert await slow_each_time(watched_server, engine, stopwatch, again) == []


def _in_turn(engine: Engine) -> None:
    """One call at a time, so that a lap has the CPU time of one call: the server runs them one by one anyway."""
    together, turn = engine.script_client.together, asyncio.Lock()

    async def alone(*calls: ScriptCall[Any], **how: Any) -> list[Any]:
        async with turn:
            return await together(*calls, **how)

    engine.script_client.together = alone  # type: ignore[method-assign]
