"""A job: its status, why it is not running, and running it again."""

import asyncio
import contextlib
from typing import Any

import pytest

from penstock import (
    JobNotFound,
    Penstock,
    PenstockError,
)
from tests.app_helpers import in_state, twin


async def test_an_unknown_job_is_not_found_at_once(app: Penstock) -> None:
    @app.task
    async def nothing() -> None: ...

    job = nothing.job("never-enqueued")
    for question in (
        job.result(timeout=5),
        job.status(),
        job.cancel(),
        job.retry(),
        asyncio.to_thread(job.result_sync),
    ):
        with pytest.raises(JobNotFound, match="never-enqueued"):
            await question


async def test_every_question_has_a_twin_for_blocking_code(app: Penstock) -> None:
    @app.task(delay="1h")
    async def later() -> None: ...

    job = await later.enqueue()
    assert await asyncio.to_thread(job.status_sync) == await job.status()
    assert await asyncio.to_thread(job.explain_sync) == await job.explain()
    assert "scheduled until" in await job.explain()
    assert await asyncio.to_thread(app.get_job_sync, job.id) == job
    assert await asyncio.to_thread(later.get_job_sync, job.id) == job
    assert await asyncio.to_thread(job.cancel_sync) == "cancelled"
    again = await later.using(delay=0).enqueue()
    assert await again.cancel() == "cancelled"
    await asyncio.to_thread(again.retry_sync)
    assert (await again.status()).state == "ready"


async def test_the_status_shows_arguments_and_tags_with_secrets_hidden(app: Penstock) -> None:
    @app.task(tags=["red"], redact=["pin"])
    async def pay(user: int, pin: int, login: dict[str, Any], note: str = "") -> None: ...

    job = await pay.enqueue(7, pin=1234, login={"name": "ann", "Password": "x", "more": [{"api_key": "y"}]})
    for handle in (job, await app.get_job(job.id), await pay.get_job(job.id)):
        status = await handle.status()
        assert status.tags == ("red",)
        assert status.arguments == {
            "user": 7,
            "pin": "[redacted]",
            "login": {"name": "ann", "Password": "[redacted]", "more": [{"api_key": "[redacted]"}]},
        }
    await app.run_until_idle()
    assert (await job.status()).arguments is None


async def test_explain_says_what_a_job_waits_for(app: Penstock) -> None:
    gate = asyncio.Event()

    @app.task
    async def slow() -> None:
        await gate.wait()

    job = await slow.enqueue()
    assert "no live worker" in await job.explain()
    await app.client.engine.pause("default")
    assert "paused" in await job.explain()
    async with app.worker():
        await app.client.engine.resume("default")
        await in_state(job, "running")
        assert "running since" in await job.explain()
        gate.set()
        await job.result(timeout=5)
    assert "done since" in await job.explain()


async def test_a_cancelled_job_with_a_delay_can_be_run_again(app: Penstock) -> None:
    @app.task(delay="1h")
    async def later() -> None: ...

    job = await later.enqueue()
    await job.cancel()
    await job.retry()  # the audit at the end finds: became ready before it was due


async def test_no_id_at_all_is_not_found(app: Penstock) -> None:
    @app.task
    async def nothing() -> None: ...

    await nothing.enqueue()
    with pytest.raises(JobNotFound):
        await app.get_job("")


async def test_explain_sync_on_a_loop_is_an_answer_or_an_error_of_ours(app: Penstock) -> None:
    @app.task
    async def one() -> int:
        return 1

    job = await one.enqueue()
    with contextlib.suppress(PenstockError):
        assert job.explain_sync()


async def test_the_status_of_a_job_with_deep_arguments_can_be_asked_for(app: Penstock) -> None:
    @app.task
    async def deep(x: list[Any]) -> None: ...

    nested: list[Any] = []
    for _ in range(600):
        nested = [nested]
    assert (await (await deep.enqueue(nested)).status()).state == "ready"


async def test_arguments_that_a_call_redacts_are_hidden_from_everybody(app: Penstock) -> None:
    @app.task
    async def pay(pin: str) -> None: ...

    job = await pay.using(redact=["pin"]).enqueue("1234")
    async with twin(app) as elsewhere:
        for handle in (await app.get_job(job.id), await elsewhere.get_job(job.id)):
            assert (await handle.status()).arguments == {"pin": "[redacted]"}
