"""Inline runs: what was enqueued has run when the call returns, through the codec and the engine."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import BatchStatus, Bury, JobContext, JobFailed, Penstock, PenstockError, Snooze, current_job
from penstock.engine.repair.audit import audit
from penstock.testing import Sandbox
from tests.servers import Server


@dataclass
class Order:
    number: int
    items: tuple[str, ...]


def test_arguments_and_results_travel_through_the_codec(app: Penstock, sandbox: Sandbox) -> None:
    got: list[Any] = []

    @app.task
    def bill(order: Order) -> Order:
        got.append(order)
        return order

    sent = Order(7, ("a", "b"))
    with sandbox.inline():
        back = bill.enqueue_sync(sent).result_sync(timeout=0)
    assert got == [sent]
    assert got[0] is not sent
    assert back == sent
    assert back is not got[0]


def test_a_result_that_cannot_be_stored_is_an_error_here(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    def work() -> object:
        return object()

    with sandbox.inline(), pytest.raises(JobFailed, match="result_not_storable"):
        work.enqueue_sync()


def test_the_error_is_the_one_that_the_task_raised_after_its_last_try(app: Penstock, sandbox: Sandbox) -> None:
    raised: list[ValueError] = []

    @app.task(retries=2, backoff=["1h"])
    def work() -> None:
        raised.append(ValueError(f"try {current_job().attempt}"))
        raise raised[-1]

    with sandbox.inline(), pytest.raises(ValueError, match="try 3") as error:
        work.enqueue_sync()
    assert error.value is raised[2]
    assert len(raised) == 3


def test_errors_stay_in_their_jobs_where_nobody_wants_them(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    def work() -> None:
        raise Bury("no")

    with sandbox.inline(raises=False):
        job = work.enqueue_sync()
    status = job.status_sync()
    assert (status.state, status.reason) == ("dead", "no")


def test_a_job_that_succeeds_in_the_end_raises_nothing(app: Penstock, sandbox: Sandbox) -> None:
    @app.task(backoff=["1h"])
    def work() -> int:
        if current_job().attempt < 3:
            raise ValueError
        return current_job().attempt

    with sandbox.inline():
        assert work.enqueue_sync().result_sync(timeout=0) == 3


def test_a_def_task_runs_in_the_thread_of_blocking_code_and_sees_no_loop(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    def outer() -> list[int]:
        return [threading.get_ident(), inner.enqueue_sync().result_sync(timeout=0)]

    @app.task
    def inner() -> int:
        return threading.get_ident()

    with sandbox.inline():
        assert outer.enqueue_sync().result_sync(timeout=0) == [threading.get_ident()] * 2


async def test_an_async_task_runs_on_the_loop_that_enqueues_it(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    async def outer() -> list[int]:
        return [threading.get_ident(), await (await inner.enqueue()).result(timeout=30)]

    @app.task
    async def inner() -> int:
        return threading.get_ident()

    with sandbox.inline():
        assert await (await outer.enqueue()).result(timeout=30) == [threading.get_ident()] * 2
        assert await outer.using(id="sync").enqueue_sync().result(timeout=30)  # in a thread, for this one is busy


def test_an_async_task_runs_for_blocking_code(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    async def work(number: int) -> int:
        return number + 1

    with sandbox.inline():
        assert work.enqueue_sync(1).result_sync(timeout=0) == 2


async def test_a_job_that_fails_inside_another_fails_that_job_only(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    async def outer() -> str:
        await inner.enqueue()
        return "done"

    @app.task(retries=0)
    async def inner() -> None:
        raise KeyError("inner")

    with sandbox.inline(), pytest.raises(KeyError, match="inner"):
        await outer.using(id="outer").enqueue()
    assert await (await outer.get_job("outer")).result(timeout=0) == "done"


async def test_a_time_limit_counts(app: Penstock, sandbox: Sandbox) -> None:
    @app.task(timeout="10ms", retries=0)
    async def work() -> None:
        await asyncio.sleep(60)

    with sandbox.inline(), pytest.raises(TimeoutError, match="timeout of 10ms"):
        await work.enqueue()


async def test_a_batch_has_ended_when_its_block_has(app: Penstock, sandbox: Sandbox) -> None:
    ended: list[BatchStatus] = []

    @app.task
    async def member(number: int) -> int:
        return number

    @app.task
    def report(status: BatchStatus) -> None:
        ended.append(status)

    with sandbox.inline():
        async with app.batch("all", then=report) as batch:
            await batch.add(member.call(1))
            await batch.add_many(member.call(number) for number in range(2, 4))
    assert [(status.name, status.done) for status in ended] == [("all", 3)]
    ended.clear()
    with sandbox.inline(), app.batch("sync", then=report) as batch:
        batch.add_many_sync([member.call(1)])
    assert [(status.name, status.done) for status in ended] == [("sync", 1)]


def test_a_delayed_or_locked_job_waits_as_everywhere(app: Penstock, sandbox: Sandbox) -> None:
    story: list[str] = []

    @app.task(lock="one")
    def outer() -> None:
        assert inner.enqueue_sync().status_sync().state == "held"
        story.append("outer")

    @app.task(lock="one")
    def inner() -> None:
        story.append("inner")
        if story.count("inner") < 3:
            raise Snooze("1h")

    with sandbox.inline():
        outer.enqueue_sync()
        inner.using(delay="1h").enqueue_sync()
    assert story == ["outer", "inner"]
    sandbox.clock.advance("1h")
    sandbox.run_until_idle_sync()
    assert story == ["outer", "inner", "inner", "inner"]


def test_middleware_is_around_an_inline_job(app: Penstock, sandbox: Sandbox) -> None:
    story: list[str] = []

    @app.middleware
    async def around(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        story.append(f"before {','.join(job.tags)}")
        try:
            return await call_next()
        finally:
            story.append("after")

    @app.task(tags=["x"])
    def work() -> None:
        story.append("work")

    with sandbox.inline():
        work.enqueue_sync()
    assert story == ["before x", "work", "after"]


def test_middleware_that_awaits_needs_a_loop_and_says_so(app: Penstock, sandbox: Sandbox) -> None:
    @app.middleware
    async def around(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.sleep(0)
        return await call_next()

    @app.task(retries=0)
    def work() -> None: ...

    with sandbox.inline(), pytest.raises(PenstockError, match="enqueue from async code"):
        work.enqueue_sync()


def test_an_inline_job_has_the_state_of_the_lifespan(single: Server) -> None:
    story: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        story.append("begin")
        yield "state"
        story.append("end")

    app = Penstock("shop", url="redis://127.0.0.1:1", lifespan=lifespan)

    @app.task
    def work() -> tuple[str, int]:
        return str(current_job().state), threading.get_ident()

    with Sandbox(app, url=single.url, inline=True):
        assert work.enqueue_sync().result_sync(timeout=0) == ("state", threading.get_ident())
        assert story == ["begin", "end"]


async def test_concurrent_inline_jobs_each_get_their_own_result(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    async def work(number: int) -> int:
        await asyncio.sleep(0.001)
        return number

    with sandbox.inline():
        jobs = await asyncio.gather(*(work.enqueue(number) for number in range(20)))
    assert [await job.result(timeout=30) for job in jobs] == list(range(20))
    assert await audit(app.client.engine) == []


def test_a_job_of_a_worker_is_not_failed_by_jobs_that_it_enqueues(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    def outer() -> str:
        inner.enqueue_sync()
        return "done"

    @app.task(retries=0)
    def inner() -> None:
        raise KeyError("inner")

    with sandbox.inline():
        job = outer.using(delay="1h").enqueue_sync()
        sandbox.clock.advance("1h")
        sandbox.run_until_idle_sync()
    assert job.result_sync(timeout=0) == "done"


def test_inline_runs_go_on_after_their_worker_was_retired(app: Penstock, sandbox: Sandbox) -> None:
    @app.task
    def work() -> int:
        return 1

    with sandbox.inline():
        (worker,) = asyncio.run(app.client.views.workers())
        app.client.engine.retire(worker.worker).sync()
        assert work.enqueue_sync().result_sync(timeout=0) == 1


def test_an_error_does_not_tell_a_hidden_argument(app: Penstock, sandbox: Sandbox) -> None:
    @app.task(retries=0, redact=["pin"])
    def pay(pin: str) -> None:
        raise ValueError(f"bad {pin}")

    with sandbox.inline(raises=False):
        job = pay.enqueue_sync("hunter2")
    assert job.status_sync().attempts[-1].message == "bad [redacted]"
