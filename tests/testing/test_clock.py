"""The clock of a sandbox: it stands still until it is moved, and what is due then happens."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import BadOption, JobCancelled, Penstock, Retry, Snooze, current_job
from penstock.testing import Clock, Sandbox
from tests.servers import Server


def test_a_delayed_job_runs_when_its_time_has_come(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    def work() -> str:
        return "done"

    job = work.using(delay="1h").enqueue_sync()
    sandbox.run_until_idle_sync()
    assert job.status_sync().state == "scheduled"
    sandbox.clock.advance("59m")
    sandbox.run_until_idle_sync()
    assert job.status_sync().state == "scheduled"
    sandbox.clock.advance("1m")
    sandbox.run_until_idle_sync()
    assert job.result_sync(timeout=0) == "done"


def test_a_job_scheduled_by_the_codes_own_clock_is_due_after_the_same_advance(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    def work() -> str:
        return "done"

    job = work.using(at=datetime.now(UTC) + timedelta(hours=1)).enqueue_sync()
    sandbox.clock.advance("1h")
    sandbox.run_until_idle_sync()
    assert job.result_sync(timeout=0) == "done"


def test_retries_wait_for_the_clock_however_short_their_back_off(app: Penstock, sandbox: Sandbox) -> None:
    tries: list[int] = []

    @app.task(retries=2, backoff=["1ms", "10m"])
    def work() -> None:
        tries.append(current_job().attempt)
        raise ValueError

    job = work.enqueue_sync()
    sandbox.run_until_idle_sync()
    assert tries == [1]
    sandbox.clock.advance("1ms")
    sandbox.run_until_idle_sync()
    assert tries == [1, 2]
    sandbox.clock.advance("10m")
    sandbox.run_until_idle_sync()
    assert tries == [1, 2, 3]
    assert job.status_sync().state == "dead"


def test_time_that_passes_with_a_worker_is_walked_through_in_order(app: Penstock, sandbox: Sandbox) -> None:
    story: list[tuple[str, float]] = []
    begin = sandbox.clock.now()

    def note(what: str) -> None:
        story.append((what, (sandbox.clock.now() - begin).total_seconds()))

    @app.task(retries=3, backoff=["1m", "2m", "4m"])
    def stubborn() -> None:
        note(f"try {current_job().attempt}")
        raise ValueError

    @app.task
    def later() -> None:
        note("later")
        if current_job().attempt == 1:
            raise Retry("30s")

    @app.task
    def sleepy() -> None:
        note("sleepy")
        if len(story) < 4:
            raise Snooze("1h")

    stubborn.enqueue_sync()
    later.using(delay="90s").enqueue_sync()
    sleepy.using(delay="10s").enqueue_sync()
    sandbox.run_for_sync("1h")
    assert story == [
        ("try 1", 0),
        ("sleepy", 10),
        ("try 2", 60),
        ("later", 90),
        ("later", 120),
        ("try 3", 180),
        ("try 4", 420),
    ]
    assert sandbox.clock.now() - begin == timedelta(hours=1)
    sandbox.run_for_sync("10s")
    assert story[-1] == ("sleepy", 3610)


async def test_schedules_tick_as_time_passes(app: Penstock, single: Server) -> None:
    ran: list[datetime] = []

    @app.cron("*/15 * * * *", tz="Europe/Berlin")
    @app.task(name="quarterly")
    async def quarterly() -> None:
        ran.append(sandbox.clock.now())

    async with Sandbox(app, url=single.url) as sandbox:
        sandbox.clock.move_to((sandbox.clock.now() + timedelta(days=3)).replace(hour=12, minute=1))
        await sandbox.run_until_idle()
        assert len(ran) == 1  # the latest of those that were missed in these days
        ran.clear()
        await sandbox.run_for("1h")
        assert [(at.hour, at.minute) for at in ran] == [(12, 15), (12, 30), (12, 45), (13, 0)]
        sandbox.assert_enqueued(quarterly, times=5)


async def test_a_leap_makes_one_tick_of_those_that_were_missed(app: Penstock, sandbox: Sandbox) -> None:
    ran: list[str] = []

    @app.every("10m")
    @app.task(name="often")
    def often() -> None:
        ran.append("often")

    await sandbox.run_until_idle()  # a worker makes known what was declared after the sandbox was opened
    sandbox.clock.advance("1h")
    await sandbox.run_until_idle()
    assert ran == ["often"]  # catch_up="latest"


def test_schedules_may_be_left_out(app: Penstock, single: Server) -> None:
    @app.every("10m")
    @app.task(name="often")
    def often() -> None: ...

    with Sandbox(app, url=single.url, schedules=False) as sandbox:
        sandbox.run_for_sync("1h")
        sandbox.assert_not_enqueued()
    with Sandbox(app, url=single.url) as sandbox:
        sandbox.run_for_sync("1h")
        sandbox.assert_enqueued(often, times=6)


def test_jobs_expire_by_the_clock(app: Penstock, sandbox: Sandbox) -> None:
    @app.task(expires="1h")
    def work() -> None: ...

    job = work.enqueue_sync()
    sandbox.clock.advance("2h")
    sandbox.run_until_idle_sync()
    with pytest.raises(JobCancelled, match="expired"):
        job.result_sync(timeout=0)


async def test_a_worker_in_the_background_lives_on_and_sees_what_is_due(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with app.worker():
        job = await work.using(delay="3d").enqueue()
        sandbox.clock.advance("3d")
        assert await job.result(timeout=30) == "done"
        again = await work.using(delay="3d").enqueue()
        sandbox.clock.advance("3d")
        assert await again.result(timeout=30) == "done"


async def test_a_clock_can_tick_by_itself(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    async def work() -> str:
        return "done"

    sandbox.clock.advance("1d")
    sandbox.clock.tick()
    async with app.worker():
        job = await work.using(delay="20ms").enqueue()
        assert await job.result(timeout=30) == "done"
    sandbox.clock.freeze()
    before = sandbox.clock()
    await asyncio.sleep(0.01)
    assert sandbox.clock() == before


def test_a_clock_never_goes_back() -> None:
    clock = Clock()
    with pytest.raises(BadOption, match="cannot go back"):
        clock.move_to(datetime.now(UTC) - timedelta(days=1))
    with pytest.raises(BadOption, match="negative"):
        clock.advance(-1)


def test_a_clock_follows_a_library_that_replaces_the_real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, real = Clock(), time.time
    begin = clock()
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    clock.advance(0)
    assert clock() >= begin + 3_600_000


async def test_views_use_the_clock_of_the_sandbox(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    async def work() -> None: ...

    job = await work.enqueue()
    sandbox.clock.advance("40d")
    old: list[Any] = [job_status async for job_status in app.jobs(older_than="30d")]
    assert [job_status.id for job_status in old] == [job.id]
