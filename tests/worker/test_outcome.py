"""How an attempt ends: whatever a task raises or returns ends its own attempt, and is shown with its error."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    Bury,
    Job,
    JobFailed,
    Penstock,
    PenstockError,
    Snooze,
)
from tests.model.test_codec import endless, nested

LONG = "x" * 10_000


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class TalksRubbish(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307  (that is the point)


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def group() -> BaseException:
    return ExceptionGroup("several", [ValueError("one"), ExceptionGroup("more", [KeyError("two")])])


RAISED: list[tuple[Callable[[], BaseException], str]] = [
    (Unshowable, "Unshowable"),
    (TalksRubbish, "TalksRubbish"),
    (Exits, "Exits"),
    (lambda: SystemExit(1), "SystemExit"),
    (KeyboardInterrupt, "KeyboardInterrupt"),
    (lambda: StopIteration(5), "StopIteration"),
    (StopAsyncIteration, "StopAsyncIteration"),
    (GeneratorExit, "GeneratorExit"),
    (asyncio.CancelledError, "CancelledError"),
    (lambda: asyncio.CancelledError("by myself"), "by myself"),
    (TimeoutError, "TimeoutError"),
    (RecursionError, "RecursionError"),
    (MemoryError, "MemoryError"),
    (group, "several"),
    (lambda: BaseExceptionGroup("worse", [KeyboardInterrupt()]), "worse"),
    (lambda: ValueError("\ud800 and \x00"), "ValueError"),
    (lambda: ValueError(*range(1000)), "ValueError"),
    (lambda: type("Näme", (Exception,), {})("ünï"), "ünï"),
    (lambda: PenstockError("ours"), "ours"),
    (lambda: JobFailed("of a child"), "of a child"),
]


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize(("make", "text"), RAISED, ids=[text for _, text in RAISED])
async def test_whatever_a_task_raises_fails_that_attempt_alone(
    app: Penstock, make: Callable[[], BaseException], text: str, kind: str
) -> None:
    @app.task(name="async", retries=1, backoff=[0])
    async def on_loop() -> None:
        raise make()

    @app.task(name="thread", retries=1, backoff=[0])
    def in_thread() -> None:
        raise make()

    @app.task
    async def fine() -> int:
        return 1

    async with app.worker(concurrency=1):
        job: Job[None] = await (on_loop if kind == "async" else in_thread).enqueue()
        with pytest.raises(JobFailed, match=text):
            await job.result(timeout=5)
        assert await (await fine.enqueue()).result(timeout=5) == 1
    status = await job.status()
    assert (status.reason, status.attempt, len(status.attempts)) == ("retries_exhausted", 2, 2)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_huge_message_and_traceback_are_cut_and_shown_at_both_ends(app: Penstock, kind: str) -> None:
    text = "begin" + "x" * 50_000_000 + "end"

    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError(text)

    @app.task(name="async", retries=0)
    async def on_loop() -> None:
        deep(200)

    @app.task(name="thread", retries=0)
    def in_thread() -> None:
        deep(200)

    job: Job[None] = await (on_loop if kind == "async" else in_thread).enqueue()
    await app.run_until_idle()
    failure = (await job.status()).attempts[0]
    assert failure.message.startswith("beginx")
    assert failure.message.endswith("xend")
    assert len(failure.message) + len(failure.traceback) < 20_000
    assert failure.traceback.startswith("Traceback")


UNSTORABLE: list[Any] = [object(), lambda: None, {1j}, endless(), nested(10_000), 10**100, threading.Lock(), "\ud800"]


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("value", UNSTORABLE, ids=lambda value: type(value).__name__)
async def test_a_result_that_cannot_be_stored_goes_to_the_dead_letter_and_is_not_tried_again(
    app: Penstock, value: Any, kind: str
) -> None:
    ran: list[int] = []

    @app.task(name="async")
    async def on_loop() -> Any:
        ran.append(1)
        return value

    @app.task(name="thread")
    def in_thread() -> Any:
        ran.append(1)
        return value

    job: Job[Any] = await (on_loop if kind == "async" else in_thread).enqueue()
    await app.run_until_idle()
    with pytest.raises(JobFailed, match="result_not_storable"):
        await job.result(timeout=5)
    assert ran == [1]


async def test_a_result_over_the_limit_is_not_stored(app: Penstock) -> None:
    @app.task
    async def heavy(size: int) -> bytes:
        return b"x" * size

    job, fine = await heavy.enqueue(2**20 + 1), await heavy.enqueue(2**20 - 100)
    await app.run_until_idle()
    with pytest.raises(JobFailed, match=r"PayloadTooLarge.*1,048,57"):
        await job.result(timeout=5)
    assert len(await fine.result(timeout=5)) == 2**20 - 100


async def test_a_task_that_cancels_itself_or_its_thread_pool_hurts_only_itself(app: Penstock) -> None:
    @app.task(retries=0)
    async def itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    @app.task(retries=0)
    async def itself_before_returning() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return 1

    @app.task
    async def fine() -> int:
        return 1

    async with app.worker(concurrency=1):
        jobs: list[Job[Any]] = [await itself.enqueue(), await itself_before_returning.enqueue()]
        with pytest.raises(JobFailed, match="CancelledError"):
            await jobs[0].result(timeout=5)
        assert await jobs[1].result(timeout=5) == 1
        assert await (await fine.enqueue()).result(timeout=5) == 1


async def test_a_bad_snooze_or_bury_inside_a_task_fails_the_attempt_with_its_text(app: Penstock) -> None:
    @app.task(retries=0)
    async def wrong(how: str) -> None:
        if how == "snooze":
            raise Snooze("soon")
        if how == "class":
            raise Snooze  # type: ignore[call-arg]
        raise Bury("a\nb" + LONG)

    async with app.worker():
        for how, text in (("snooze", "soon"), ("class", "TypeError"), ("bury", "a b")):
            with pytest.raises(JobFailed, match=text):
                await (await wrong.enqueue(how)).result(timeout=5)


async def test_a_deep_recursion_in_a_task_fails_the_attempt(app: Penstock) -> None:
    @app.task(retries=0)
    async def deep() -> None:
        def down() -> None:
            down()

        down()

    job = await deep.enqueue()
    began = time.monotonic()
    await app.run_until_idle()
    with pytest.raises(JobFailed, match="RecursionError"):
        await job.result()
    assert time.monotonic() - began < 3
