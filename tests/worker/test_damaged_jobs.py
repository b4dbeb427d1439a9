"""Stored jobs that somebody damaged: each is buried or shown as it is, and no other job is affected."""

import asyncio
from typing import Any

import msgspec
import pytest

from penstock import (
    JobFailed,
    Penstock,
)
from penstock.engine.record.layout import INLINE
from penstock.engine.record.record import read_payload
from tests.app_helpers import in_state, on_both
from tests.engine.factories import raw, record_of, rewrite, rewrite_payload, rewrite_raw, spoil


@on_both
async def test_a_payload_that_cannot_be_decoded_goes_to_the_dead_letter_as_it_is(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    garbage: list[bytes] = [
        b"",
        b"\xc1",
        b"garbage",
        b"\x93",
        msgspec.msgpack.encode(5),
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode([{}]),
        msgspec.msgpack.encode([{"x": "one"}]),
        msgspec.msgpack.encode([{"x": 1, "y": 2}]),
        msgspec.msgpack.encode([[1]]),
        msgspec.msgpack.encode([{"x": 1}, "tags"]),
        msgspec.msgpack.encode([{"x": 1}, [5]]),
        msgspec.msgpack.encode([{"x": 1}, [], "timeout"]),
        msgspec.msgpack.encode([{"x": 1}])[:-1],
    ]
    jobs = [await echo.using(id=f"with-a-header-{n}").enqueue(1) for n in range(len(garbage))]
    client, keys = await raw(app.client.engine), app.client.engine.keys
    for job, payload in zip(jobs, garbage, strict=True):
        await rewrite_payload(app.client.engine, job.id, payload)
    good = await echo.enqueue(7)
    async with app.worker():
        assert await good.result(timeout=5) == 7
        for job in jobs:
            with pytest.raises(JobFailed, match="undecodable"):
                await job.result(timeout=5)
    for job, payload in zip(jobs, garbage, strict=True):
        assert await client.zscore(keys("dead"), job.id)
        assert read_payload(await record_of(app.client.engine, job.id)) == payload
        assert (await job.status()).attempts[0].message


async def test_a_payload_that_is_gone_buries_its_job(app: Penstock) -> None:
    @app.task
    async def echo(x: int, more: str = "") -> int:
        return x

    job, good = await echo.using(id="with-a-header").enqueue(1, "." * INLINE), await echo.enqueue(2)
    client, keys = await raw(app.client.engine), app.client.engine.keys
    await client.hdel(keys("payloads"), job.id)
    async with app.worker():
        assert await good.result(timeout=5) == 2
        with pytest.raises(JobFailed, match="payload_lost"):
            await job.result(timeout=5)
    await client.hset(keys("payloads"), job.id, b"for the audit: a dead job has its payload")


async def test_a_garbled_header_affects_no_other_job_and_its_payload_is_kept_in_the_dead_letter(
    app: Penstock,
) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    job, engine = await echo.using(id="with-a-header").enqueue(1), app.client.engine
    client, keys = await raw(engine), engine.keys
    payload = await client.hget(keys("payloads"), job.id)
    await spoil(engine, job.id)
    async with app.worker():
        jobs = [await echo.enqueue(number) for number in range(10)]
        assert [await job.result(timeout=5) for job in jobs] == list(range(10))
    with pytest.raises(JobFailed, match="unreadable_header"):
        await job.result(timeout=5)
    assert await client.hget(keys("payloads"), job.id) == payload


async def test_a_result_that_was_garbled_hurts_only_who_reads_it(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    job, good = await echo.enqueue(1), await echo.enqueue(2)
    await app.run_until_idle()
    client, keys = await raw(app.client.engine), app.client.engine.keys
    await client.hset(keys("results"), job.id, b"\xc1")
    results = await asyncio.gather(job.result(timeout=5), good.result(timeout=5), return_exceptions=True)
    assert isinstance(results[0], Exception)
    assert not isinstance(results[0], TimeoutError)
    assert results[1] == 2


async def test_an_error_that_was_garbled_is_shown_as_it_is(app: Penstock) -> None:
    @app.task(retries=0)
    async def fail() -> None:
        raise ValueError

    job = await fail.enqueue()
    await app.run_until_idle()
    client, keys = await raw(app.client.engine), app.client.engine.keys
    history = msgspec.msgpack.encode([[1, 5, 6, "worker", "bury", "not json"]])
    await client.hset(keys("attempts"), job.id, history)
    with pytest.raises(JobFailed, match="not json"):
        await job.result(timeout=5)
    assert (await job.status()).attempts[0].message == "not json"


async def test_an_unknown_task_in_a_record_is_put_off_and_charges_nothing(app: Penstock) -> None:
    @app.task(name="here", retries=0)
    async def here() -> int:
        return 1

    job, good = await here.using(id="with-a-header").enqueue(), await here.enqueue()
    engine = app.client.engine
    await rewrite(engine, job.id, task="not here")
    async with app.worker():
        await in_state(job, "scheduled")
        assert await good.result(timeout=5) == 1
    status = await job.status()
    assert (status.reason, status.attempt) == ("unknown_task", 0)


async def test_a_payload_with_a_garbled_backoff_ends_in_the_dead_letter(app: Penstock) -> None:
    @app.task(retries=0)
    async def fail() -> None:
        raise ValueError

    job = await fail.using(id="with-a-header").enqueue()
    payload = msgspec.msgpack.encode([{}, [], -1, ["foo"]])
    await rewrite_payload(app.client.engine, job.id, payload)
    async with app.worker(concurrency=1, grace=0.1):
        with pytest.raises(JobFailed):
            await job.result(timeout=2)


@pytest.mark.parametrize(
    "fields", [{"task": 7}, {"task": [1]}, {"size": "x"}, {"priority": "x"}, {"expires": "x"}, {"reason": 5}], ids=str
)
async def test_a_header_with_a_wrong_type_affects_no_other_job(app: Penstock, fields: dict[str, Any]) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    await rewrite_raw(app.client.engine, (await echo.enqueue(1)).id, **fields)
    async with app.worker(grace=0.1):
        assert await (await echo.enqueue(2)).result(timeout=2) == 2


async def test_a_garbled_history_affects_no_other_job(app: Penstock) -> None:
    @app.task(backoff=["100ms"])
    async def fail() -> None:
        raise ValueError

    @app.task
    async def fine() -> int:
        return 1

    async with app.worker(grace=0.1):
        job = await fail.enqueue()
        await in_state(job, "scheduled")
        await (await raw(app.client.engine)).hset(app.client.engine.keys("attempts"), job.id, b"\xc1")
        await asyncio.sleep(0.3)
        assert await (await fine.enqueue()).result(timeout=2) == 1


async def test_a_garbled_header_goes_to_the_dead_letter_and_run_until_idle_ends(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    job = await echo.enqueue(1)
    await (await raw(app.client.engine)).hset(app.client.engine.keys("jobs"), job.id, b"\xc1")
    async with asyncio.timeout(3):
        await app.run_until_idle()
    with pytest.raises(JobFailed):
        await job.result(timeout=1)
