"""What a worker takes: its queues in their order, as many jobs as it has slots for, nothing of a paused queue."""

import asyncio
import time
from collections import Counter

import pytest

from penstock import (
    Penstock,
)
from tests.app_helpers import eventually


async def test_named_queues_are_worked_off_in_strict_order_and_others_left_alone(app: Penstock) -> None:
    ran: list[str] = []

    @app.task
    async def note(x: str) -> None:
        ran.append(x)

    for queue in ("third", "second", "first", "elsewhere"):
        await app.enqueue_many(note.using(queue=queue).call(queue) for _ in range(5))
    await app.run_until_idle(queues="first,second,third", concurrency=1)
    assert ran == ["first"] * 5 + ["second"] * 5 + ["third"] * 5
    assert (await app.client.views.counts())["elsewhere"]["ready"] == 5


async def test_weighted_queues_get_about_their_share(app: Penstock) -> None:
    ran: list[str] = []

    @app.task
    async def note(x: str) -> None:
        ran.append(x)

    for queue in ("much", "little"):
        await app.enqueue_many(note.using(queue=queue).call(queue) for _ in range(400))
    async with app.worker(queues=["much:4", "little:1"], concurrency=1):
        await eventually(lambda: len(ran) >= 300, within=15)
    counted = Counter(ran[:300])
    assert 200 < counted["much"] < 280
    assert counted["little"] > 20


async def test_a_worker_without_named_queues_takes_all_queues_by_priority(app: Penstock) -> None:
    ran: list[int] = []

    @app.task
    async def note(x: int) -> None:
        ran.append(x)

    for number in range(20):
        await note.using(queue=f"q{number % 3}", priority=50 if number < 10 else 49).enqueue(number)
    await app.run_until_idle(concurrency=1)
    assert ran == [*range(10, 20), *range(10)]


@pytest.mark.parametrize("concurrency", [1, 2, 5, 250])
async def test_no_more_jobs_run_at_once_than_allowed_and_no_fewer_when_there_is_work(
    app: Penstock, concurrency: int
) -> None:
    at_once, most, gate = 0, 0, asyncio.Event()

    @app.task
    async def count() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == concurrency:
            gate.set()
        await gate.wait()
        await asyncio.sleep(0)
        at_once -= 1

    jobs = await app.enqueue_many(count.call() for _ in range(2 * concurrency + 3))
    async with app.worker(concurrency=concurrency):
        async with asyncio.timeout(60):
            await gate.wait()
        await asyncio.gather(*(job.result(timeout=60) for job in jobs))
    assert most == concurrency


async def test_a_worker_with_more_slots_than_a_page_asks_on_until_they_are_filled(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it looks by itself, should a message have been lost: a full page says that there may be more."""
    monkeypatch.setattr("penstock.worker.fetch.IDLE_POLL_INTERVAL", 3600)
    at_once, gate = 0, asyncio.Event()

    @app.task
    async def count() -> None:
        nonlocal at_once
        at_once += 1
        if at_once == 450:
            gate.set()
        await gate.wait()

    await app.enqueue_many(count.call() for _ in range(450))
    async with app.worker(concurrency=450), asyncio.timeout(60):
        await gate.wait()


async def test_pause_holds_a_queue_and_resume_lets_it_go_at_once(app: Penstock) -> None:
    @app.task
    async def now() -> float:
        return time.monotonic()

    engine = app.client.engine
    async with app.worker():
        await (await now.enqueue()).result(timeout=5)
        assert await engine.pause("default") == "ok"
        held = [await now.enqueue() for _ in range(3)]
        other = await now.using(queue="other").enqueue()
        await other.result(timeout=5)
        assert {(await job.status()).state for job in held} == {"ready"}
        resumed = time.monotonic()
        assert await engine.resume("default") == "ok"
        ran = [await job.result(timeout=5) for job in held]
        assert all(0 < at - resumed < 1 for at in ran)
