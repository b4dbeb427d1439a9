"""Tasks: how a function becomes one, what it is called, and how it is called."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import (
    BadOption,
    JobNotFound,
    Penstock,
    UnknownTask,
)

LONG = "x" * 10_000


@pytest.mark.parametrize("name", ["a b", "a{b}", "a\nb", LONG, "*", 5, "a\x1fb"])
def test_a_bad_name_of_a_task_is_refused(name: Any) -> None:
    app = Penstock("never-connected", url="redis://127.0.0.1:1")

    async def function() -> None: ...

    with pytest.raises(BadOption, match="name="):
        app.task(name=name)(function)
    assert app.tasks == {}


def test_a_task_that_is_registered_twice_or_is_no_function_is_refused() -> None:
    app = Penstock("never-connected", url="redis://127.0.0.1:1")

    async def function() -> None: ...

    app.task(function)
    with pytest.raises(BadOption, match="twice"):
        app.task(function)
    app.task(name="another")(function)
    nothing: Any = 5
    with pytest.raises(BadOption, match="function"):
        app.task()(nothing)
    with pytest.raises(UnknownTask, match="did you mean 'another'"):
        app.find_task("anothr")


async def test_a_plain_call_of_a_task_runs_here_and_now(app: Penstock) -> None:
    @app.task
    async def double(x: int) -> int:
        return 2 * x

    @app.task
    def triple(x: int) -> int:
        return 3 * x

    assert await double(4) == 8
    assert triple(4) == 12


async def test_get_job_of_a_task_is_typed_and_an_unknown_id_is_not_found(app: Penstock) -> None:
    @app.task
    async def when() -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    job = await when.enqueue()
    await app.run_until_idle()
    assert await (await when.get_job(job.id)).result() == datetime(2026, 1, 1, tzinfo=UTC)
    assert await (await app.get_job(job.id)).result() == datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(JobNotFound, match="nothing-here"):
        await when.get_job("nothing-here")
    with pytest.raises(JobNotFound):
        await asyncio.to_thread(app.get_job_sync, "nothing-here")


def test_a_partial_is_a_task_or_an_error_of_ours() -> None:
    import functools

    app = Penstock("never-connected", url="redis://127.0.0.1:1")
    with contextlib.suppress(BadOption):
        app.task(functools.partial(print, 1))


def test_an_async_generator_is_no_task() -> None:
    app = Penstock("never-connected", url="redis://127.0.0.1:1")

    async def generator() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(BadOption):
        app.task(generator)
