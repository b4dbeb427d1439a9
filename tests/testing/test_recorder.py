"""Jobs that were enqueued, by task, arguments and options; a failed assertion shows what was enqueued instead."""

from datetime import UTC, datetime
from unittest.mock import ANY
from uuid import UUID

import pytest

from penstock import BatchStatus, Penstock
from penstock.engine.engine import PLAIN_PAGE
from penstock.testing import Sandbox

NUMBER = UUID(int=7)


def test_a_call_finds_jobs_with_its_arguments_however_they_were_written(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    def send(user: UUID, subject: str = "hi", *more: int) -> None: ...

    send.enqueue_sync(NUMBER)
    send.enqueue_sync(user=NUMBER, subject="bye")
    sandbox.run_until_idle_sync()
    assert sandbox.assert_enqueued(send.call(NUMBER, subject="hi"))[0].arguments["user"] == NUMBER
    sandbox.assert_enqueued(send.call(NUMBER, "bye"), times=1)
    sandbox.assert_enqueued(send, times=2)
    sandbox.assert_enqueued(send, where={"subject": "bye"}, times=1)
    sandbox.assert_enqueued(send, where={"user": ANY}, times=2)
    sandbox.assert_not_enqueued(send.call(UUID(int=8)))


async def test_jobs_of_several_pages_are_all_found(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    async def work(number: int) -> None: ...

    await app.enqueue_many(work.call(n) for n in range(2 * PLAIN_PAGE + 1))
    sandbox.assert_enqueued(work, times=2 * PLAIN_PAGE + 1)


def test_options_count_if_they_are_said(app: Penstock, sandbox: Sandbox) -> None:
    @app.task(queue="mail")
    def send(user: int) -> None: ...

    @app.task(lock="user:{user}")
    def lock(user: int) -> None: ...

    at = datetime(2035, 1, 1, tzinfo=UTC)
    send.using(delay="10m", priority=7, tags=["a"]).enqueue_sync(1)
    send.using(at=at, timeout="3s", id="mine").enqueue_sync(2)
    lock.enqueue_sync(3)
    sandbox.assert_enqueued(send.call(1))
    sandbox.assert_enqueued(send.using(delay="10m", tags=["a"]).call(1))
    sandbox.assert_enqueued(send.using(at=at, id="mine").call(2))
    sandbox.assert_enqueued(send.using(timeout=3).call(2))
    sandbox.assert_enqueued(lock.using(lock="user:3").call(3))
    sandbox.assert_not_enqueued(send.using(delay="9m").call(1))
    sandbox.assert_not_enqueued(send.using(priority=8).call(1))
    sandbox.assert_not_enqueued(send.using(queue="other").call(1))
    sandbox.assert_not_enqueued(send.using(tags=["b"]).call(1))
    sandbox.assert_not_enqueued(send.using(timeout=4).call(2))
    sandbox.assert_not_enqueued(send.using(id="yours").call(2))
    first, second = sandbox.enqueued(send)
    assert (first.queue, first.priority, first.delay, first.tags) == ("mail", 7, 600_000, ("a",))
    assert (second.id, second.at) == ("mine", at)


async def test_every_way_to_enqueue_is_seen(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    async def work(number: int) -> None: ...

    @app.task
    async def report(status: BatchStatus) -> None: ...

    await work.enqueue(1)
    await app.enqueue_many([work.call(2), work.call(3)])
    app.enqueue_many_sync([work.call(4)])
    async with app.batch("all", then=report) as batch:
        await batch.add(work.call(5))
    assert [job.arguments for job in sandbox.enqueued(work)] == [{"number": number} for number in range(1, 6)]
    assert sandbox.enqueued(work)[4].batch == batch.id
    sandbox.assert_not_enqueued(report)
    await sandbox.run_until_idle()
    (job,) = sandbox.assert_enqueued(report)
    assert job.arguments["status"].done == 1
    await app.schedule("often").set(work.call(6), every="1m")
    sandbox.clock.advance("1m")
    async with app.worker(queues=["none"]) as worker:
        await sandbox._drain(worker)
    sandbox.assert_enqueued(work.call(6))


def test_a_job_that_existed_already_does_not_count_as_enqueued(app: Penstock, sandbox: Sandbox) -> None:
    @app.task(unique=True)
    def work() -> None: ...

    work.enqueue_sync()
    assert not work.enqueue_sync().created
    sandbox.assert_enqueued(work, times=1)
    sandbox.clear()
    sandbox.assert_not_enqueued()
    sandbox.run_until_idle_sync()
    sandbox.assert_not_enqueued()


def test_a_failure_shows_jobs_of_the_same_task_first(app: Penstock, sandbox: Sandbox) -> None:
    @app.task(name="send")
    def send(user: int, subject: str = "hi") -> None: ...

    @app.task(name="other")
    def other() -> None: ...

    with pytest.raises(AssertionError) as error:
        sandbox.assert_enqueued(send.call(1))
    assert str(error.value) == "expected to be enqueued: send(user=1, subject='hi')\nnothing was enqueued"
    other.enqueue_sync()
    with pytest.raises(AssertionError, match=r"what was enqueued:\n  other\(\)$"):
        sandbox.assert_enqueued(send, where={"user": 1})
    send.using(delay="10m", queue="mail").enqueue_sync(2)
    with pytest.raises(AssertionError) as error:
        sandbox.assert_enqueued(send.using(delay="5m").call(2))
    assert str(error.value) == (
        "expected to be enqueued: send(user=2, subject='hi')  [delay=5m]\n"
        "what was enqueued:\n"
        "  send(user=2, subject='hi')  [queue=mail delay=10m]\n"
        "  and 1 of other tasks"
    )
    with pytest.raises(AssertionError, match=r"expected 2 times, but 1 of them were enqueued: send\(…\)"):
        sandbox.assert_enqueued(send, times=2)
    with pytest.raises(AssertionError, match=r"expected not to be enqueued: send\(user=2\)"):
        sandbox.assert_not_enqueued(send, where={"user": 2})
    with pytest.raises(AssertionError, match=r"expected no job at all\nwhat was enqueued:\n  other"):
        sandbox.assert_not_enqueued()


def test_an_assertion_about_an_impossible_job_is_an_error(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    def send(user: int) -> None: ...

    with pytest.raises(TypeError, match="has no argument usr; it has user"):
        sandbox.assert_enqueued(send, where={"usr": 1})
    with pytest.raises(TypeError, match="a call has its arguments already"):
        sandbox.assert_enqueued(send.call(1), where={"user": 1})
    with pytest.raises(TypeError, match="a task, or a call"):
        sandbox.assert_enqueued(send.function)  # type: ignore[arg-type]
