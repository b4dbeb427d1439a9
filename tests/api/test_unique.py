"""Ids and unique keys: one job, however often it is sent."""

import asyncio

import pytest

from penstock import (
    Penstock,
)


async def test_an_id_makes_one_job_however_often_it_is_sent(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    jobs = await asyncio.gather(*(echo.using(id="order-7").enqueue(number) for number in range(20)))
    assert {job.id for job in jobs} == {"order-7"}
    assert sorted(job.created for job in jobs) == [False] * 19 + [True]
    await app.run_until_idle()
    first = next(number for number, job in enumerate(jobs) if job.created)
    assert await jobs[0].result() == first
    late = await echo.using(id="order-7").enqueue(99)
    assert not late.created
    assert await late.result() == first


async def test_generated_ids_differ_and_sort_by_time(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    ids = [echo.call(number).job.id for number in range(5_000)]
    assert len(set(ids)) == len(ids)
    await asyncio.sleep(0.002)
    assert echo.call(0).job.id > max(ids)


@pytest.mark.parametrize("unique", ["the-only-one", True, "user:{user}"])
async def test_a_unique_job_is_made_once_until_it_has_finished(app: Penstock, unique: str | bool) -> None:
    @app.task(unique=unique)
    async def remind(user: int, text: str = "hi") -> str:
        return text

    first, second = await remind.enqueue(7), await remind.enqueue(7)
    assert (first.created, second.created) == (True, False)
    assert first == second
    assert (await remind.enqueue(8)).created == (unique != "the-only-one")
    await app.run_until_idle()
    third = await remind.enqueue(7)
    assert third.created
    assert third.id != first.id


async def test_unique_by_template_looks_at_the_named_arguments_only(app: Penstock) -> None:
    @app.task(unique="{user}/{text}")
    async def remind(user: int, text: str = "hi", times: int = 1) -> None: ...

    first = await remind.enqueue(7, times=1)
    assert (await remind.enqueue(7, times=2)).id == first.id
    assert (await remind.enqueue(7, text="hi")).id == first.id
    assert (await remind.enqueue(user=7)).id == first.id
    assert (await remind.enqueue(7, text="ho")).created


async def test_unique_true_looks_at_task_and_arguments(app: Penstock) -> None:
    @app.task(unique=True)
    async def remind(user: int) -> None: ...

    @app.task(unique=True)
    async def forget(user: int) -> None: ...

    first = await remind.enqueue(7)
    assert (await remind.enqueue(user=7)).id == first.id
    assert (await forget.enqueue(7)).created


async def test_a_unique_key_given_with_using_is_taken_literally(app: Penstock) -> None:
    @app.task
    async def remind(user: int) -> None: ...

    first = await remind.using(unique="{user}").enqueue(7)
    assert (await remind.using(unique="{user}").enqueue(8)).id == first.id
    assert (await remind.using(unique=False).enqueue(8)).created


async def test_a_cancelled_job_frees_its_unique_key(app: Penstock) -> None:
    @app.task(unique="k", delay="1h")
    async def remind() -> None: ...

    first = await remind.enqueue()
    assert await first.cancel() == "cancelled"
    assert (await remind.enqueue()).created


async def test_unique_true_does_not_care_how_arguments_are_written(app: Penstock) -> None:
    @app.task(unique=True)
    async def remind(user: int, text: str = "hi") -> None: ...

    first = await remind.enqueue(user=7, text="hi")
    assert (await remind.enqueue(text="hi", user=7)).id == first.id
    assert (await remind.enqueue(7)).id == first.id
