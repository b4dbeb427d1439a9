"""Enqueueing a job: it is stored when the call returns, with the options that were set."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Penstock
from tests.app_helpers import on_both, twin


@on_both
async def test_an_enqueued_job_is_stored_when_enqueue_returns(app: Penstock) -> None:
    @app.task(queue="mail")
    async def send(user: int, subject: str = "hi") -> str:
        return subject

    job = await send.enqueue(7, subject="x")
    assert job.created
    async with twin(app) as elsewhere:
        status = await (await elsewhere.get_job(job.id)).status()
    assert (status.state, status.queue, status.priority, status.attempt) == ("ready", "mail", 50, 0)
    assert status.task == send.name


async def test_using_changes_a_copy_and_stacks(app: Penstock) -> None:
    @app.task(queue="mail", retries=5)
    async def send() -> None: ...

    urgent = send.using(priority=0)
    later = urgent.using(delay="1h", queue="slow")
    statuses = [await (await task.enqueue()).status() for task in (send, urgent, later)]
    assert [(s.queue, s.priority, s.state, s.retries) for s in statuses] == [
        ("mail", 50, "ready", 5),
        ("mail", 0, "ready", 5),
        ("slow", 0, "scheduled", 5),
    ]


@pytest.mark.parametrize("delay", [3600, 3600.0, timedelta(hours=1), "1h", "60m", "3600s", "3600000ms"])
async def test_a_delay_can_be_said_in_many_ways(app: Penstock, delay: Any) -> None:
    @app.task(delay=delay)
    async def later() -> None: ...

    status = await (await later.enqueue()).status()
    assert status.state == "scheduled"
    assert status.due is not None
    assert status.due - status.created == timedelta(hours=1)


async def test_at_is_an_instant_in_any_zone_and_wins_over_the_tasks_delay(app: Penstock) -> None:
    @app.task(delay="2h")
    async def later() -> None: ...

    instant = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    for zone in (UTC, None):
        status = await (await later.using(at=instant.astimezone(zone)).enqueue()).status()
        assert status.due == instant


async def test_an_at_that_is_just_past_means_now_and_a_delay_of_nothing_too(app: Penstock) -> None:
    @app.task
    async def now() -> int:
        return 1

    past = await now.using(at=datetime.now(UTC) - timedelta(days=400)).enqueue()
    at_once = await now.using(delay=0).enqueue()
    await app.run_until_idle()
    assert [await past.result(), await at_once.result()] == [1, 1]


async def test_a_job_that_expires_first_is_cancelled_with_that_reason(app: Penstock) -> None:
    @app.task(delay="1h")
    async def late() -> None: ...

    job = await late.using(expires="5ms").enqueue()
    async with app.worker():
        with pytest.raises(Exception, match="expired"):
            await job.result(timeout=5)
    status = await job.status()
    assert (status.state, status.reason, status.attempt) == ("cancelled", "expired", 0)


async def test_priorities_come_first_and_inside_one_the_order_of_enqueueing(app: Penstock) -> None:
    ran: list[int] = []

    @app.task
    async def note(x: int) -> None:
        ran.append(x)

    for number, priority in enumerate([50, 99, 0, 50, 0, 99, 7]):
        await note.using(priority=priority).enqueue(number)
    await app.run_until_idle(concurrency=1)
    assert ran == [2, 4, 6, 0, 3, 1, 5]


async def test_an_instant_of_the_last_century_is_past(app: Penstock) -> None:
    @app.task
    async def now() -> int:
        return 1

    job = await now.using(at=datetime(1990, 1, 1, tzinfo=UTC)).enqueue()
    assert (await job.status()).state == "ready"  # is scheduled for 2046
