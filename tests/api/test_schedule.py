"""Schedules through the API: each tick once, changes at run time, and bad options."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import BadArguments, BadOption, Penstock, PenstockError, ScheduleNotFound
from penstock.engine.read.views import Views
from tests.app_helpers import eventually, in_state, on_both, twin


@on_both
async def test_a_task_runs_at_each_tick_once_however_many_workers_there_are(app: Penstock) -> None:
    ran: list[float] = []

    async with twin(app) as other:
        for one in (app, other):

            @one.every("200ms", id="often")
            @one.task(name="often")
            async def often() -> None:
                ran.append(time.time())

        async with app.worker(), app.worker(), other.worker(), other.worker():
            await eventually(lambda: len(ran) >= 5, within=20)
    jobs = [job_id async for job_id, _ in Views(app.client.engine).headers()]
    assert len(set(jobs)) == len(jobs)
    status = await app.schedule("often").status()
    assert (status.made, status.task, status.source) == (len(jobs), "often", "code")
    assert all(tick.at >= tick.nominal for tick in status.history)
    assert {tick.nominal.microsecond % 200_000 for tick in status.history} == {0}


async def test_the_decorator_gives_the_task_itself(app: Penstock) -> None:
    @app.cron("0 3 * * *", tz="Europe/Berlin")
    @app.every("30s", id="also", args=[7], kwargs={"text": "x"})
    @app.task(name="both")
    async def both(number: int = 1, *, text: str = "") -> str:
        return f"{number}{text}"

    assert await both(3) == "3"
    async with app.worker():
        also, nightly = await app.schedules()
        assert [also.id, nightly.id] == ["also", "both"]
        assert (nightly.rule, nightly.words) == ("0 3 * * *", "At 03:00 every day, Europe/Berlin")
        assert nightly.next is not None
        assert nightly.next > datetime.now(UTC) - timedelta(minutes=1)
        assert (await (await app.schedule("also").run()).result(timeout=10)) == "7x"
        assert (await (await app.schedule("both").run()).result(timeout=10)) == "1"


async def test_a_schedule_removed_from_the_code_is_shown_as_orphaned_and_makes_no_jobs(app: Penstock) -> None:
    for name in ("kept", "removed"):

        @app.every("100ms", id=name)
        @app.task(name=name)
        async def run() -> None: ...

    async with app.worker():
        pass
    async with twin(app) as newer:

        @newer.every("100ms", id="kept")
        @newer.task(name="kept")
        async def kept() -> None: ...

        async with newer.worker():

            async def states() -> dict[str, str]:
                return {schedule.id: schedule.state for schedule in await newer.schedules()}

            assert await states() == {"kept": "active", "removed": "orphaned"}
            before = (await newer.schedule("kept").status()).made

            async def went_on() -> bool:
                return (await newer.schedule("kept").status()).made > before + 2

            await eventually(went_on, within=20)
            assert (await newer.schedule("removed").status()).made <= 2
            assert await states() == {"kept": "active", "removed": "orphaned"}


async def test_made_changed_paused_resumed_run_and_removed_at_run_time(app: Penstock) -> None:
    @app.task(name="report")
    async def report(number: int) -> int:
        return number * 2

    plan = app.schedule("hourly")
    with pytest.raises(ScheduleNotFound, match="hourly"):
        await plan.status()
    assert await plan.set(report.call(21), cron="0 * * * *", tz="America/New_York") == "made"
    assert await plan.set(report.call(21), cron="0 * * * *", tz="America/New_York") == "same"
    assert await plan.set(report.call(4), every="1h", overlap="allow", jitter="5m", catch_up="all") == "changed"
    status = await plan.status()
    assert (status.state, status.source, status.overlap, status.catch_up, status.jitter) == (
        "active",
        "set",
        "allow",
        "all",
        300,
    )
    assert len(status.upcoming) == 3
    assert await plan.pause()
    assert not await plan.pause()
    assert (await plan.status()).next is None
    async with app.worker():
        assert await (await plan.run()).result(timeout=10) == 8
        assert await plan.resume()
        assert not await plan.resume()
    await plan.remove()
    with pytest.raises(ScheduleNotFound):
        await plan.remove()
    with pytest.raises(ScheduleNotFound):
        await plan.run()
    assert await app.schedules() == []


async def test_overlap_is_obeyed_while_a_job_runs(app: Penstock) -> None:
    running: dict[str, int] = {"skip": 0, "queue": 0}
    most: dict[str, int] = {"skip": 0, "queue": 0}
    order: list[str] = []

    for name in ("skip", "queue"):

        @app.every("200ms", id=name, overlap=name, kwargs={"name": name}, catch_up="all")
        @app.task(name=name)
        async def slow(name: str) -> None:
            running[name] += 1
            most[name] = max(most[name], running[name])
            order.append(name)
            await asyncio.sleep(0.5)
            running[name] -= 1

    async with app.worker():
        await eventually(lambda: order.count("queue") >= 4 and order.count("skip") >= 3, within=30)
        with pytest.raises(PenstockError, match="unfinished"):
            await eventually(app.schedule("skip").run, within=10)
    assert most == {"skip": 1, "queue": 1}
    queue, skip = await app.schedules()
    assert skip.skipped > 0
    assert queue.skipped == 0
    assert queue.waiting > 0


async def test_a_timer_asks_for_nothing_while_it_waits_and_hears_of_an_earlier_time(app: Penstock) -> None:
    started = asyncio.Event()

    @app.task(name="later")
    async def later() -> None:
        started.set()

    async with app.worker():
        job = await later.using(delay="1h").enqueue()
        await later.using(delay="2h").enqueue()
        await job.reschedule(delay="300ms")
        await asyncio.wait_for(started.wait(), 20)
        assert (await job.status()).state in {"running", "done"}


async def test_a_scheduled_job_can_be_run_now_and_one_that_is_not_waiting_cannot(app: Penstock) -> None:
    @app.task(name="later")
    async def later() -> int:
        return 1

    job = await later.using(delay="1h").enqueue()
    await job.run_now()
    async with app.worker():
        assert await job.result(timeout=10) == 1
        with pytest.raises(PenstockError, match="is done"):
            await job.run_now()
    other = later.using(at=datetime.now(UTC) + timedelta(hours=1)).enqueue_sync()
    other.reschedule_sync(at=datetime.now(UTC) + timedelta(hours=2))
    assert (other.status_sync().due or datetime.now(UTC)) > datetime.now(UTC) + timedelta(minutes=90)
    other.run_now_sync()
    await in_state(other, "ready")
    await other.cancel()


async def test_a_job_that_is_late_expires_on_time_without_a_free_worker(app: Penstock) -> None:
    @app.task(name="never", queue="nobody-serves-it")
    async def never() -> None: ...

    async with app.worker(queues="other"):
        job = await never.using(expires="200ms").enqueue()
        await in_state(job, "cancelled", within=20)
        status = await job.status()
        assert status.reason == "expired"
        assert status.finished is not None
        assert status.expires is not None
        assert status.finished >= status.expires


@pytest.mark.parametrize(
    "options",
    [
        {"tz": "Mars/Base"},
        {"catch_up": "some"},
        {"overlap": "maybe"},
        {"jitter": -1},
        {"jitter": "x"},
        {"id": "a b"},
        {"id": ""},
    ],
)
async def test_bad_options_are_refused_where_they_are_written(app: Penstock, options: dict[str, Any]) -> None:
    @app.task(name="a")
    async def task() -> None: ...

    if options == {"id": ""}:
        assert app.cron("* * * * *", id="")(task) is task  # no id: the task's name
        return
    with pytest.raises(BadOption):
        app.cron("* * * * *", **options)(task)
    assert app.program.schedules == {}


async def test_a_call_that_cannot_be_scheduled_is_refused(app: Penstock) -> None:
    @app.task(name="needs")
    async def needs(number: int) -> None: ...

    with pytest.raises(BadArguments, match="number"):
        app.every("1s")(needs)
    with pytest.raises(BadArguments):
        app.every("1s", args=["x"])(needs)
    app.every("1s", args=[1])(needs)
    with pytest.raises(BadOption, match="twice"):
        app.cron("* * * * *", args=[1])(needs)
    with pytest.raises(BadOption, match=r"above @app\.task"):
        app.every("1s")(lambda: None)  # type: ignore[type-var]
    with pytest.raises(BadOption, match="id or at"):
        await app.schedule("x").set(needs.using(id="y").call(1), every="1s")
    with pytest.raises(BadOption, match="either"):
        await app.schedule("x").set(needs.call(1))
    with pytest.raises(BadOption, match="either"):
        await app.schedule("x").set(needs.call(1), every="1s", cron="* * * * *")
    with pytest.raises(BadArguments, match="call"):
        await app.schedule("x").set(needs, every="1s")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="one of delay and at"):
        await (await needs.using(delay="1h").enqueue(1)).reschedule()


async def test_times_that_cannot_be_are_refused(app: Penstock) -> None:
    @app.task(name="a")
    async def task() -> None: ...

    for options in ({"at": datetime(2030, 1, 1)}, {"delay": -1}, {"delay": "3651d"}, {"expires": -1}):  # noqa: DTZ001
        with pytest.raises(BadOption):
            task.using(**options)
    with pytest.raises(BadOption, match="ten years"):
        task.using(at=datetime(2100, 1, 1, tzinfo=UTC))
