"""Middleware: around every run, and what it raises counts."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import (
    Bury,
    JobContext,
    JobFailed,
    Penstock,
    current_job,
)


async def test_middleware_wraps_every_run_and_the_first_is_the_outermost(app: Penstock) -> None:
    steps: list[str] = []

    @app.middleware
    async def outer(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        assert current_job() is job
        steps.append(f"outer {job.attempt}")
        try:
            return await call_next()
        finally:
            steps.append("outer ends")

    @app.middleware
    async def inner(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        steps.append("inner")
        return f"<{await call_next()}>"

    @app.task(retries=1, backoff=[0])
    async def text() -> str:
        steps.append("task")
        if current_job().attempt == 1:
            raise ValueError
        return "x"

    @app.task
    def plain() -> str:
        return "y"

    job = await text.enqueue()
    await app.run_until_idle()
    assert await job.result() == "<x>"
    once = ["inner", "task", "outer ends"]
    assert steps == ["outer 1", *once, "outer 2", *once]
    other = await plain.enqueue()
    await app.run_until_idle()
    assert await other.result() == "<y>"


async def test_a_middleware_that_raises_fails_the_attempt_and_may_bury_the_job(app: Penstock) -> None:
    @app.middleware
    async def moody(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        if "bury" in job.tags:
            raise Bury("says the middleware")
        if job.attempt == 1:
            raise ValueError("not yet")
        return await call_next()

    @app.task(backoff=[0])
    async def task() -> int:
        return current_job().attempt

    job, buried = await task.enqueue(), await task.using(tags=["bury"]).enqueue()
    await app.run_until_idle()
    assert await job.result() == 2
    with pytest.raises(JobFailed, match="says the middleware"):
        await buried.result()
