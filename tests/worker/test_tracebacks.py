"""Tracebacks of failed attempts: they begin with the user's code."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import (
    JobContext,
    Penstock,
)
from penstock.worker.outcome import Raised, describe_error
from penstock.worker.tracebacks import trace_of


@pytest.mark.parametrize("how", ["fails", "overruns", "fails in a thread"])
async def test_a_traceback_begins_with_the_users_code(app: Penstock, how: str) -> None:
    @app.middleware
    async def around(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        return await call_next()

    @app.task(timeout="50ms", retries=0)
    async def on_loop() -> None:
        if how == "fails":
            raise ValueError(how) from KeyError("cause")
        await asyncio.sleep(60)

    @app.task(retries=0)
    def in_thread() -> None:
        raise ValueError(how)

    job = await (in_thread if how == "fails in a thread" else on_loop).enqueue()
    await app.run_until_idle()
    (failure,) = (await job.status()).attempts
    frames = [line for line in failure.traceback.splitlines() if line.startswith("  File")]
    assert "in around" in frames[0]
    assert ("in in_thread" if how == "fails in a thread" else "in on_loop") in frames[1]
    assert "penstock/worker" not in failure.traceback
    assert failure.traceback.rstrip().endswith(f"{failure.type}: {failure.message}")


def test_a_fault_of_the_worker_itself_is_shown_whole() -> None:
    try:
        describe_error(Raised.__new__(Raised))
    except AttributeError as error:
        within = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
        assert "penstock/worker/outcome.py" in trace_of(within)
    else:
        pytest.fail("that was no fault")
