"""`enqueue_many`: any iterable of calls, in its order, a page per script call."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock import (
    BadArguments,
    Call,
    JobNotFound,
    Penstock,
    PenstockError,
    Unavailable,
)
from penstock.engine.engine import PAGE, PLAIN_PAGE
from penstock.engine.repair.audit import audit
from tests.app_helpers import on_both, stats


async def test_a_call_is_sent_only_by_enqueue_many(app: Penstock) -> None:
    @app.task
    async def double(x: int) -> int:
        return 2 * x

    call = double.call(4)
    assert isinstance(call, Call)
    with pytest.raises(JobNotFound):
        await app.get_job(call.job.id)
    (job,) = await app.enqueue_many([call])
    assert job.id == call.job.id
    assert await app.get_job(job.id) == job


def calls_of(task: Any, numbers: range) -> Iterator[Call[Any]]:
    return (task.call(number) for number in numbers)


@on_both
async def test_enqueue_many_takes_any_iterable_and_keeps_the_order(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    async def stream() -> AsyncIterator[Call[int]]:
        for number in range(20, 30):
            await asyncio.sleep(0)
            yield echo.call(number)

    jobs = [
        *await app.enqueue_many([echo.call(number) for number in range(10)]),
        *await app.enqueue_many(calls_of(echo, range(10, 20))),
        *await app.enqueue_many(stream()),
    ]
    assert all(job.created for job in jobs)
    await app.run_until_idle()
    assert await asyncio.gather(*(job.result() for job in jobs)) == list(range(30))
    assert await app.enqueue_many([]) == []


async def test_enqueue_many_sends_a_page_per_script_call(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    await app.enqueue_many([echo.call(0)])
    before = await stats(app, "fcall")
    jobs = await app.enqueue_many(calls_of(echo, range(5 * PLAIN_PAGE)))
    assert len({job.id for job in jobs}) == 5 * PLAIN_PAGE
    assert await stats(app, "fcall") - before == 5


async def test_calls_with_different_options_come_in_smaller_pages(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    other = echo.using(priority=3)
    before = await stats(app, "fcall")
    for numbers in (range(PAGE), range(PAGE + 1), range(2 * PAGE)):
        await app.enqueue_many((other if number == 50 else echo).call(number) for number in numbers)
    await app.enqueue_many(other.call(number) if number >= PAGE else echo.call(number) for number in range(3 * PAGE))
    assert await stats(app, "fcall") - before == 1 + 2 + 2 + 2
    assert (await app.client.views.counts())["default"]["ready"] == 7 * PAGE + 1
    assert await audit(app.client.engine) == []


async def test_enqueue_many_bounds_a_page_in_bytes_too(app: Penstock) -> None:
    @app.task
    async def weigh(data: bytes) -> int:
        return len(data)

    await weigh.enqueue(b"")
    before = await stats(app, "fcall")
    heavy = await app.enqueue_many(weigh.call(b"x" * 1_000_000) for _ in range(9))
    assert await stats(app, "fcall") - before == 3
    await asyncio.gather(*(job.cancel() for job in heavy))


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_calls_that_fail_half_way_raise_their_own_error_and_leave_whole_pages(
    app: Penstock, asynchronous: bool
) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    def broken() -> Iterator[Call[int]]:
        yield from calls_of(echo, range(2 * PLAIN_PAGE + 50))
        raise LookupError("no more rows")

    async def broken_stream() -> AsyncIterator[Call[int]]:
        for call in broken():
            yield call

    with pytest.raises(LookupError, match="no more rows"):
        await app.enqueue_many(broken_stream() if asynchronous else broken())
    counts = await app.client.views.counts()
    assert counts.get("default", {}).get("ready", 0) in {PLAIN_PAGE, 2 * PLAIN_PAGE}


async def test_a_call_with_bad_arguments_in_the_middle_is_refused_where_it_is_written(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    bad: Any = "three"
    with pytest.raises(BadArguments):
        await app.enqueue_many(echo.call(bad if number == 3 else number) for number in range(10))
    assert await app.client.views.counts() == {}


async def test_enqueue_many_may_mix_tasks_queues_and_options(app: Penstock) -> None:
    @app.task(queue="a")
    async def one() -> int:
        return 1

    @app.task(queue="b")
    def two() -> str:
        return "two"

    calls: list[Call[Any]] = [one.call(), two.call(), one.using(queue="c", delay="1h").call()]
    jobs = await app.enqueue_many(calls)
    assert [(await job.status()).queue for job in jobs] == ["a", "b", "c"]
    await app.run_until_idle()
    assert [await job.result() for job in jobs[:2]] == [1, "two"]
    assert (await jobs[2].status()).state == "scheduled"


async def test_pages_sent_before_the_iterable_failed_are_awaited(app: Penstock, unhandled: list[Any]) -> None:
    slow = app.client.engine.script_client
    together = slow.together

    @app.task
    async def echo(x: int) -> int:
        return x

    async def refuse(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(0.02)
        raise Unavailable("not now")

    def calls() -> Any:
        yield from (echo.call(number) for number in range(250))
        raise LookupError

    slow.together = refuse  # type: ignore[method-assign]
    with pytest.raises((LookupError, Unavailable)):
        await app.enqueue_many(calls())
    await asyncio.sleep(0.1)
    slow.together = together  # type: ignore[method-assign]
    gc.collect()
    assert unhandled == []


@pytest.mark.parametrize("wrong", [[5], [None], 5], ids=str)
async def test_anything_but_a_call_is_refused_with_an_error_of_ours(app: Penstock, wrong: Any) -> None:
    with pytest.raises(PenstockError):
        await app.enqueue_many(wrong)


async def test_a_call_of_another_app_is_refused(app: Penstock) -> None:
    other = Penstock("another", url=app.settings.url)

    @other.task
    async def theirs() -> None: ...

    with pytest.raises(PenstockError):
        await app.enqueue_many([theirs.call()])
