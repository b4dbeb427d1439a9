"""Jobs by filter: listed, counted and changed together; queues and tasks paused, bounded and purged."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import BadArguments, BadOption, Job, Penstock, PenstockError, QueueFull


class Unlucky(Exception): ...


def make(app: Penstock) -> dict[str, object]:
    @app.task(name="send", queue="mail", retries=0)
    async def send(user: int, subject: str = "hi") -> int:
        if user < 0:
            raise Unlucky(f"user {user} of 'mail' at 0x7f{abs(user)}")
        return user

    @app.task(name="pay", queue="money", retries=0, lock="account:{account}")
    async def pay(account: int) -> int:
        if account < 0:
            raise ValueError("no funds")
        return account

    return {"send": send, "pay": pay}


async def fill(app: Penstock) -> None:
    """Three dead of each task, two done, and some that wait."""
    make(app)
    send, pay = app.tasks["send"], app.tasks["pay"]
    for number in range(-3, 2):
        await send.using(tags=[f"t{number % 2}"]).enqueue(number)
        await pay.enqueue(number)
    await app.run_until_idle()
    await send.enqueue(7)
    await send.using(delay="1h").enqueue(8)
    await pay.enqueue(9)
    await pay.enqueue(9)


@pytest.mark.parametrize(
    ("which", "number"),
    [
        ({}, 14),
        ({"queue": "mail"}, 7),
        ({"state": "dead"}, 6),
        ({"state": "done"}, 4),
        ({"state": "dead", "queue": "mail"}, 3),
        ({"task": "pay", "state": "dead"}, 3),
        ({"tag": "t1"}, 2),
        ({"error": "unlucky"}, 3),
        ({"error": "no funds", "state": "dead"}, 3),
        ({"state": "scheduled"}, 1),
        ({"state": "ready"}, 2),
        ({"state": "held"}, 1),
        ({"older_than": "1h"}, 0),
        ({"newer_than": "1h", "state": "dead"}, 6),
    ],
)
async def test_a_filter_finds_what_fits(app: Penstock, which: dict[str, Any], number: int) -> None:
    await fill(app)
    jobs = app.jobs(**which)
    assert await jobs.count() == number
    assert len(await jobs) == number
    assert len({job.id async for job in jobs}) == number


async def test_a_task_is_found_without_its_module_too(app: Penstock) -> None:
    @app.task(name="shop.tasks:ship")
    async def ship() -> None: ...

    await ship.enqueue()
    counts = {
        name: await app.jobs(task=name).count() for name in ("shop.tasks:ship", "ship", "shop.tasks", "tasks:ship")
    }
    assert counts == {"shop.tasks:ship": 1, "ship": 1, "shop.tasks": 0, "tasks:ship": 0}


async def test_a_bad_filter_is_refused(app: Penstock) -> None:
    bad: list[dict[str, Any]] = [{"state": "zombie"}, {"older_than": "long"}, {"queue": "no queue"}]
    for which in bad:
        with pytest.raises(BadOption):
            app.jobs(**which)


async def test_pages_go_on_where_they_were_whatever_happens_between_them(app: Penstock) -> None:
    make(app)
    jobs = await app.enqueue_many(app.tasks["send"].call(-1 - n) for n in range(250))
    await app.run_until_idle()
    seen: list[str] = []
    cursor = ""
    selection = app.jobs(state="dead")
    while True:
        page, cursor = await selection.page(cursor)
        assert len(page) <= 100
        seen += [job.id for job in page]
        for one in page[-1:]:
            await (await app.get_job(one.id)).retry()  # the one that the cursor names
        if not cursor:
            break
    assert sorted(seen) == sorted(job.id for job in jobs)
    with pytest.raises(BadOption, match="cursor"):
        await selection.page("nonsense")


async def test_dead_jobs_are_retried_by_filter_in_the_order_in_which_they_died(app: Penstock) -> None:
    await fill(app)
    queue = app.queue("mail")
    assert [job.state for job in await queue.dead()] == ["dead"] * 3
    assert await queue.dead(error="no funds") == []
    assert await queue.retry_dead(error="Unlucky") == 3
    assert await queue.dead() == []
    assert len(await app.jobs(state="dead")) == 3


async def _until_dead(app: Penstock, number: int) -> None:
    while (await app.queue("mail").status()).counts.get("dead", 0) < number:  # noqa: ASYNC110  (the server knows)
        await asyncio.sleep(0.05)


async def test_a_bulk_retry_does_not_chase_those_that_die_again(app: Penstock) -> None:
    make(app)
    await app.enqueue_many(app.tasks["send"].call(-1) for _ in range(300))
    async with app.worker(queues="mail"):
        async with asyncio.timeout(60):
            await _until_dead(app, 300)
            assert await app.jobs(state="dead").retry() == 300
            await _until_dead(app, 300)


async def test_jobs_are_cancelled_by_filter_also_those_that_lanes_show_meanwhile(app: Penstock) -> None:
    make(app)
    await app.enqueue_many(app.tasks["pay"].call(1) for _ in range(30))
    await app.tasks["send"].enqueue(1)
    assert await app.jobs(queue="money").cancel() == 30
    assert await app.jobs(state="cancelled").count() == 30
    assert await app.jobs(state="ready").count() == 1


async def test_waiting_jobs_are_moved_by_filter(app: Penstock) -> None:
    await fill(app)
    assert await app.jobs(queue="mail").move("slow") == 2
    assert await app.jobs(queue="slow").count() == 2
    assert await app.jobs(queue="slow").move("slow") == 0


async def test_finished_jobs_are_discarded_by_filter(app: Penstock) -> None:
    await fill(app)
    assert await app.jobs(state="dead", task="pay").discard() == 3
    assert await app.jobs(state="dead").count() == 3


async def test_progress_is_reported(app: Penstock) -> None:
    make(app)
    await app.enqueue_many(app.tasks["send"].call(1) for _ in range(250))
    counts: list[int] = []
    await app.jobs(queue="mail").cancel(on_progress=counts.append)
    assert counts == [50, 100, 150, 200, 250]


# Dead messages


async def test_the_dead_are_grouped_by_what_they_died_of(app: Penstock) -> None:
    await fill(app)
    groups = await app.dead_groups()
    assert {(group.type, group.count, group.task) for group in groups} == {
        ("Unlucky", 3, "send"),
        ("ValueError", 3, "pay"),
    }
    now = datetime.now(UTC)
    for group in groups:
        assert abs(datetime.fromtimestamp(group.last / 1000, UTC) - now) < timedelta(minutes=5)
        assert group.first <= group.last
        assert next(job.id for job in await app.jobs(group=group.group)) == group.sample
    (unlucky,) = await app.dead_groups(queue="mail")
    assert await app.jobs(group=unlucky.group).retry() == 3
    assert [group.type for group in await app.dead_groups()] == ["ValueError"]


async def _dead(app: Penstock) -> Job[int]:
    make(app)
    job: Job[int] = await app.tasks["pay"].enqueue(-1)
    await app.run_until_idle()
    assert (await job.status()).state == "dead"
    return job


@pytest.mark.parametrize("arguments", [{"account": 5}, [5]])
async def test_a_dead_job_runs_again_with_other_arguments(app: Penstock, arguments: object) -> None:
    job = await _dead(app)
    await app.retry_job(job.id, arguments)  # type: ignore[arg-type]
    await app.run_until_idle()
    assert await job.result(timeout=0) == 5


async def test_arguments_that_do_not_fit_the_task_are_refused_and_change_nothing(app: Penstock) -> None:
    job = await _dead(app)
    several: list[Any] = [{"account": "x"}, {"nobody": 1}, []]
    for bad in several:
        with pytest.raises(BadArguments):
            await app.retry_job(job.id, bad)
    assert (await job.status()).state == "dead"


async def test_new_arguments_of_an_unknown_task_are_taken_by_name(url: str, app: Penstock) -> None:
    job = await _dead(app)
    stranger = Penstock(app.name, url=url)
    with pytest.raises(BadArguments, match="by name"):
        await stranger.retry_job(job.id, [5])
    await stranger.retry_job(job.id, {"account": 6})
    await app.run_until_idle()
    assert await job.result(timeout=0) == 6
    with pytest.raises(PenstockError, match="only a dead or cancelled"):
        await app.retry_job((await app.tasks["pay"].enqueue(1)).id, [1])
    await stranger.aclose()


# Queues and tasks


async def test_a_full_queue_refuses_and_says_so_wherever_jobs_are_sent(app: Penstock) -> None:
    make(app)
    send = app.tasks["send"]
    await app.queue("mail").set(max_size=2)
    await send.enqueue(1)
    await asyncio.to_thread(send.enqueue_sync, 2)
    with pytest.raises(QueueFull, match="max_size"):
        await send.enqueue(3)
    with pytest.raises(QueueFull):
        await asyncio.to_thread(send.enqueue_sync, 3)
    with pytest.raises(QueueFull):
        await app.enqueue_many([send.call(3)])
    with pytest.raises(QueueFull):
        await asyncio.to_thread(app.enqueue_many_sync, [send.call(3)])
    status = await app.queue("mail").status()
    assert (status.max_size, status.counts["ready"]) == (2, 2)
    await app.queue("mail").reset()
    await send.enqueue(3)


async def test_a_refused_job_does_not_affect_jobs_enqueued_at_the_same_moment(app: Penstock) -> None:
    make(app)
    await app.queue("mail").set(max_size=1)
    sent = [app.tasks["send"].enqueue(n) for n in range(3)] + [app.tasks["pay"].enqueue(1)]
    results = await asyncio.gather(*sent, return_exceptions=True)
    assert [isinstance(result, QueueFull) for result in results] == [False, True, True, False]


async def test_a_queue_is_purged_of_what_waits(app: Penstock) -> None:
    await fill(app)
    assert await app.queue("money").purge() == 2
    assert await app.queue("mail").purge() == 2
    assert await app.jobs(state="cancelled").count() == 4
    assert {job.reason for job in await app.jobs(state="cancelled")} == {"purged"}
    assert await app.jobs(state="dead").count() == 6


async def test_a_paused_task_waits_and_its_jobs_say_why(app: Penstock) -> None:
    make(app)
    send = app.tasks["send"]
    await send.pause()
    job = await send.enqueue(1)
    other = await app.tasks["pay"].using(queue="mail").enqueue(1)
    await app.run_until_idle()
    assert await other.result(timeout=0) == 1
    assert (await job.status()).state == "held"
    assert "task 'send' is paused" in await job.explain()
    await send.resume()
    await app.run_until_idle()
    assert await job.result(timeout=0) == 1


async def test_queue_set_without_a_value_or_with_a_bad_one_is_refused(app: Penstock) -> None:
    several: list[dict[str, int]] = [{}, {"max_size": -1}, {"max_size": True}, {"limit": -1}]
    for bad in several:
        with pytest.raises(BadOption):
            await app.queue("mail").set(**bad)
