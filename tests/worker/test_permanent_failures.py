"""A settle, a schedule or a loop that always fails stops no other."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock import Penstock, Snooze
from penstock.worker import fetch, timer
from tests.app_helpers import eventually, in_state
from tests.conftest import namespace
from tests.engine.factories import raw
from tests.servers import Server, running


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

    client, results = await raw(app.client.engine), app.client.engine.keys("results")
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

    engine = app.client.engine
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
    return len((await app.client.engine.due_crons(100)).crons) >= many


class Shop:
    """An app with a task, and how late its jobs were."""

    def __init__(self, app: Penstock) -> None:
        self.app = app
        self.late: list[float] = []
        self.ran: list[str] = []

        @app.task(name="due")
        async def due(at: float) -> None:
            self.late.append(time.time() - at)

        @app.task(name="now")
        async def now(what: str) -> str:
            self.ran.append(what)
            return what

        self.due, self.now = due, now

    async def trade(self, seconds: float, *, delayed: bool) -> list[float]:
        """Jobs that run at once, and some that are due soon, for so long; how long the former took to their results."""
        took, until, number = list[float](), time.monotonic() + seconds, 0
        while time.monotonic() < until:
            number += 1
            if delayed:
                await self.due.using(delay=0.1).enqueue(time.time() + 0.1)
            began = time.monotonic()
            assert await (await self.now.enqueue(f"n{number}")).result(timeout=15) == f"n{number}"
            took.append(time.monotonic() - began)
            await asyncio.sleep(0.05)
        await eventually(lambda: len(self.late) == number * delayed, within=20)
        return took


@pytest.mark.parametrize("step", ["reap", "prune", "expire", "admit", "due_crons", "do_chores", "promote"])
async def test_a_step_of_the_timer_that_always_fails_slows_no_other(
    app: Penstock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """And so for everything else that a worker does: leasing, settling, renewing."""
    engine, shop = app.client.engine, Shop(app)
    monkeypatch.setattr(timer, "PRUNE_INTERVAL", 0.2)
    monkeypatch.setattr(
        engine, step, lambda *_, **__: engine.script_client.call("reap", (), bytes)
    )  # it lacks its arguments
    await shop.now.enqueue("lost")
    await engine.register("lost", 100, "{}", ["default"])
    assert len((await engine.lease("lost", 1, queues=["default"], want=1, answered=0)).leases) == 1
    async with app.worker(lease="1s"):
        (before,) = [node.worker for node in await app.client.views.workers() if node.worker != "lost"]
        took = await shop.trade(2.5, delayed=step != "promote")
        assert statistics.median(took) < 0.3, took
        assert statistics.median(shop.late or [0]) < 0.3, shop.late
        if step == "promote":
            await shop.due.using(delay=0.01).enqueue(0)
        await eventually(lambda: f"{step} failed, and is tried again" in caplog.text)
        if step != "reap":
            await eventually(lambda: "lost" in shop.ran)
        assert before in {node.worker for node in await app.client.views.workers()}
    assert "taken for dead" not in caplog.text
    assert "the timer failed" not in caplog.text
    monkeypatch.undo()
    await app.client.engine.reap(100)
    await app.run_until_idle()


@pytest.mark.parametrize("step", ["promote", "expire", "admit", "due_crons", "do_chores", "reap", "prune"])
async def test_a_step_of_the_timer_whose_answer_cannot_be_read_stops_no_other(
    app: Penstock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    engine, ticked, shop = app.client.engine, asyncio.Event(), Shop(app)
    called = getattr(engine, step)

    @app.task(name="tick")
    async def tick() -> None:
        ticked.set()

    def unreadable(*args: Any, **options: Any) -> Any:
        call = called(*args, **options)
        return engine.script_client.call(step, call.args, lambda raw: int(b"what is this"))

    monkeypatch.setattr(timer, "PRUNE_INTERVAL", 0.2)
    monkeypatch.setattr(engine, step, unreadable)
    async with app.worker(lease="300ms"):
        await eventually(lambda: f"{step} failed, and is tried again" in caplog.text)
        await app.schedule("each").set(tick.call(), every="300ms")
        job = await shop.due.using(delay=0.2).enqueue(time.time() + 0.2)
        await in_state(job, "done")
        if step != "due_crons":
            async with asyncio.timeout(10):
                await ticked.wait()
    assert "the timer failed" not in caplog.text


@pytest.fixture
async def unheard() -> AsyncIterator[tuple[Server, Shop]]:
    """A shop whose user may not subscribe."""
    with running(Server("--appendonly", "no")) as server:
        client: Any = server.client()
        client.execute_command("ACL", "SETUSER", "default", "-ssubscribe")
        async with Penstock(namespace(), url=server.url, deadline=0.5) as app:
            yield server, Shop(app)


async def test_a_subscription_that_is_always_refused_stops_neither_leases_nor_the_timer_nor_renewals(
    unheard: tuple[Server, Shop], caplog: pytest.LogCaptureFixture
) -> None:
    _, shop = unheard
    async with shop.app.worker(lease="1s"):
        (before,) = await shop.app.client.views.workers()
        for number in range(3):  # each to a worker that has nothing to do
            began = time.monotonic()
            job = await shop.now.enqueue(f"n{number}")
            await shop.due.using(delay=0.1).enqueue(time.time() + 0.1)
            await in_state(job, "done", within=8)
            assert time.monotonic() - began < 4
        await eventually(lambda: len(shop.late) == 3, within=8)
        assert max(shop.late) < 4, shop.late
        assert [node.worker for node in await shop.app.client.views.workers()] == [before.worker]
    assert "refuses" in caplog.text
    assert "taken for dead" not in caplog.text


async def test_a_worker_does_not_wait_for_a_refused_subscription_after_the_server_was_away(
    unheard: tuple[Server, Shop], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, shop = unheard
    monkeypatch.setattr(fetch, "IDLE_POLL_INTERVAL", 0.2)
    async with shop.app.worker(lease="1s"):
        await eventually(lambda: "refuses" in caplog.text)
        server.kill()
        await eventually(lambda: "sending again with the same id is safe" in caplog.text, within=10)
        await asyncio.sleep(1.5)  # all loops have failed by then
        server.restart()
        client: Any = server.client()
        client.execute_command("ACL", "SETUSER", "default", "-ssubscribe")
        began = time.monotonic()
        job = await shop.now.enqueue("again")
        await in_state(job, "done", within=15)
        assert time.monotonic() - began < 10
