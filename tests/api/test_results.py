"""Results: the value, or the right error when there will never be one."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    BadOption,
    Job,
    JobCancelled,
    JobFailed,
    JobNotFound,
    Penstock,
    PenstockError,
    ResultExpired,
)
from tests.app_helpers import eventually, on_both, twin


@on_both
async def test_a_result_is_the_same_before_and_after_the_end(app: Penstock) -> None:
    @app.task
    async def double(x: int) -> int:
        return 2 * x

    job = await double.enqueue(21)
    waiting = [asyncio.create_task(job.result(timeout=10)) for _ in range(5)]
    await asyncio.sleep(0)
    await app.run_until_idle()
    assert await asyncio.gather(*waiting) == [42] * 5
    assert await job.result() == 42
    assert await asyncio.to_thread(job.result_sync) == 42


async def test_a_result_can_be_awaited_by_another_process_that_knows_only_the_id(app: Penstock) -> None:
    @app.task
    async def pair() -> tuple[int, str]:
        return 1, "one"

    job = await pair.enqueue()
    async with twin(app) as elsewhere:
        handle = await elsewhere.get_job(job.id)
        waiting = asyncio.create_task(handle.result(timeout=10))
        await asyncio.sleep(0)
        async with app.worker():
            assert await waiting == [1, "one"]  # plain data: that process has no task that says more
            assert await job.result(timeout=5) == (1, "one")


async def test_a_failed_job_raises_with_its_error_and_where_it_was_raised(app: Penstock) -> None:
    @app.task(retries=1, backoff=[0])
    async def fail() -> None:
        raise LookupError("nothing in the drawer")

    job = await fail.enqueue()
    waiting = asyncio.create_task(job.result(timeout=10))
    await app.run_until_idle()
    with pytest.raises(JobFailed, match="nothing in the drawer") as caught:
        await waiting
    assert "LookupError" in str(caught.value)
    assert "in fail" in str(caught.value)
    assert job.id in str(caught.value)
    with pytest.raises(JobFailed, match="retries_exhausted"):
        await job.result()
    with pytest.raises(JobFailed, match="after 2 attempts"):
        await asyncio.to_thread(job.result_sync)


async def test_a_cancelled_job_raises_that_it_was_cancelled(app: Penstock) -> None:
    @app.task(delay="1h")
    async def later() -> None: ...

    job = await later.enqueue()
    waiting = asyncio.create_task(job.result(timeout=10))
    await eventually(lambda: _is_awaited(app, job))
    await job.cancel()
    with pytest.raises(JobCancelled, match=job.id):
        await waiting
    with pytest.raises(JobCancelled):
        await asyncio.to_thread(job.result_sync)


async def _is_awaited(app: Penstock, job: Job[Any]) -> bool:
    client = await app.client.endpoint.client()
    return bool(await client.hexists(app.client.engine.keys("waiting"), job.id))


async def test_an_expired_job_raises_that_it_was_cancelled_because_it_expired(app: Penstock) -> None:
    @app.task(delay="1h", expires="10ms")
    async def later() -> None: ...

    job = await later.enqueue()
    async with app.worker():
        with pytest.raises(JobCancelled, match="expired"):
            await job.result(timeout=5)


async def test_a_result_that_is_not_kept_has_expired_and_none_has_not(app: Penstock) -> None:
    @app.task(keep_result=0)
    async def dropped() -> int:
        return 1

    @app.task(keep_result=0)
    async def nothing() -> None:
        return None

    job, silent = await dropped.enqueue(), await nothing.enqueue()
    await app.run_until_idle()
    with pytest.raises(ResultExpired, match="keep_result"):
        await job.result(timeout=5)
    with pytest.raises(ResultExpired):
        await asyncio.to_thread(job.result_sync, 5)
    assert await silent.result(timeout=5) is None  # type: ignore[func-returns-value]
    await app.client.engine.prune()
    with pytest.raises(ResultExpired):
        await job.result(timeout=5)
    assert await silent.result(timeout=5) is None  # type: ignore[func-returns-value]


async def test_a_result_that_was_kept_long_enough_has_expired(app: Penstock) -> None:
    @app.task(keep_result="10ms")
    async def brief() -> int:
        return 1

    job = await brief.enqueue()
    await app.run_until_idle()
    await eventually(lambda: _pruned(app))
    with pytest.raises(ResultExpired):
        await job.result(timeout=5)


async def _pruned(app: Penstock) -> bool:
    pruned, _ = await app.client.engine.prune()
    return pruned > 0


async def test_a_dead_job_that_is_run_again_has_a_result_after_all(app: Penstock) -> None:
    broken = [True]

    @app.task(retries=0)
    async def repaired() -> str:
        if broken:
            raise ValueError
        return "well"

    job = await repaired.enqueue()
    await app.run_until_idle()
    with pytest.raises(JobFailed):
        await job.result()
    broken.clear()
    await job.retry()
    await app.run_until_idle()
    assert await job.result() == "well"
    with pytest.raises(PenstockError, match="only a dead or cancelled job"):
        await job.retry()


async def test_result_sync_on_a_loop_is_refused_because_it_would_block_it(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    job = await echo.enqueue(1)
    with pytest.raises(PenstockError, match=r"await result\(\)"):
        job.result_sync(timeout=1)


async def test_result_with_a_timeout_of_zero_gives_the_result_of_a_finished_job_only(app: Penstock) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    job = await double.enqueue(21)
    with pytest.raises(TimeoutError, match="it is ready"):
        await job.result(timeout=0)
    await app.run_until_idle()
    assert await job.result(timeout=0) == 42
    assert await asyncio.to_thread(job.result_sync, 0) == 42
    with pytest.raises(JobNotFound):
        await double.job("nobody").result(timeout=0)


@pytest.mark.parametrize("timeout", ["20ms", timedelta(milliseconds=20), 0.02])
async def test_a_time_out_is_written_like_other_times(app: Penstock, timeout: Any) -> None:
    @app.task(name="later")
    async def later() -> None: ...

    job = await later.using(delay="1h").enqueue()
    with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
        await job.result(timeout)
    batch = await app.batch().open()
    with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
        await batch.wait(timeout)
    with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
        await asyncio.to_thread(job.result_sync, timeout)
    with pytest.raises(BadOption, match="timeout='soon'"):
        await job.result("soon")


@pytest.mark.parametrize("hint", [int, bytes | str], ids=str)
async def test_a_result_that_does_not_fit_its_annotation_is_an_error_of_ours(app: Penstock, hint: Any) -> None:
    async def function() -> Any:
        return "text"

    function.__annotations__ = {"return": hint}
    job = await app.task(name="f")(function).enqueue()
    await app.run_until_idle()
    try:  # noqa: SIM105
        assert await job.result(timeout=2) == "text"
    except PenstockError:
        pass
