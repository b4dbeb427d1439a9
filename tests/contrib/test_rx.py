"""Observables: events and the observable queue for reactivex."""

import asyncio

import pytest

from penstock import Event, Penstock
from penstock.worker.queue_stream import QueueLease

pytest.importorskip("reactivex")
from reactivex import operators

from penstock.contrib import rx


async def _until(condition: object, number: int) -> None:
    async with asyncio.timeout(30):
        while len(condition) < number:  # type: ignore[arg-type]  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_events_arrive_through_operators_until_the_subscription_is_disposed_of(app: Penstock) -> None:
    @app.task(name="send", queue="mail")
    async def send(number: int) -> None: ...

    seen: list[str] = []
    observable = rx.events(app, since="0", kinds=["enqueue"]).pipe(operators.map(_job))
    subscription = observable.subscribe(on_next=seen.append)
    jobs = [(await send.enqueue(n)).id for n in range(3)]
    await _until(seen, 3)
    assert seen == jobs
    subscription.dispose()
    await asyncio.sleep(0.05)
    await send.enqueue(4)
    await asyncio.sleep(0.2)
    assert seen == jobs


def _job(event: Event) -> str:
    return event.job


async def test_a_stream_gives_leases_and_disposing_gives_the_rest_back(app: Penstock) -> None:
    @app.task(name="send", queue="mail")
    async def send(number: int) -> None: ...

    await app.enqueue_many(send.call(n) for n in range(10))
    leases: list[QueueLease] = []
    subscription = rx.stream(app.queue("mail"), limit=4).subscribe(on_next=leases.append)
    await _until(leases, 4)
    async with leases[0] as job:
        assert job.arguments == {"number": 0}
    await _until(leases, 5)
    subscription.dispose()
    async with asyncio.timeout(30):
        while (await app.queue("mail").status()).counts.get("running"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    counts = (await app.queue("mail").status()).counts
    assert (counts["ready"], counts["done"]) == (9, 1)
    async with asyncio.timeout(30):
        while await app.client.views.workers():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_an_error_is_an_error_of_the_observable(app: Penstock) -> None:
    errors: list[Exception] = []
    rx.events(app, since="yesterday").subscribe(on_next=print, on_error=errors.append)
    await _until(errors, 1)
    assert "an event's id" in str(errors[0])


async def test_an_observable_completes_when_its_source_ends() -> None:
    async def numbers() -> object:
        yield 1
        yield 2

    seen: list[object] = []
    rx.from_async(numbers).subscribe(on_next=seen.append, on_completed=lambda: seen.append("end"))  # type: ignore[arg-type]
    await _until(seen, 3)
    assert seen == [1, 2, "end"]
