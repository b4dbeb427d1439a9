"""A worker that was taken for dead goes on under one new name, and no attempt starts twice."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from penstock import (
    Job,
    Penstock,
    StaleLease,
    current_job,
)
from penstock.worker.session import Session
from tests.app_helpers import eventually, in_state, own_app
from tests.conftest import namespace
from tests.proxy import proxied
from tests.servers import Server


class Starts:
    """What started under which fence, and locks that two jobs held at once."""

    def __init__(self) -> None:
        self.fences: Counter[tuple[str, int]] = Counter()
        self.inside: Counter[str] = Counter()
        self.shared: list[str] = []

    async def run(self, lock: str) -> None:
        self.fences[current_job().id, current_job().fence] += 1
        self.inside[lock] += 1
        if self.inside[lock] > 1:
            self.shared.append(lock)
        await asyncio.sleep(0.001)
        self.inside[lock] -= 1

    @property
    def twice(self) -> list[tuple[str, int]]:
        return [start for start, many in self.fences.items() if many > 1]


async def test_a_worker_taken_for_dead_gets_one_new_name(single: Server, unhandled: list[Any]) -> None:
    starts, reaped, rounds = Starts(), list[str](), 10
    with proxied(single.port) as proxy:
        async with own_app(single, namespace()) as app:
            behind = Penstock(app.name, url=proxy.url)

            @app.task(name="work", lock="{lock}")
            async def from_outside(lock: str) -> None: ...

            @behind.task(name="work", lock="{lock}")
            async def work(lock: str) -> None:
                await starts.run(lock)

            async with behind.worker(concurrency=8) as worker:
                for turn in range(rounds):
                    await _two_trips_are_held_back(worker, proxy)
                    reaped.append(worker.name)
                    await app.client.engine.reap_worker(worker.name, [], 30_000)
                    jobs = [await from_outside.enqueue(f"{turn}-{n % 6}") for n in range(12)]
                    proxy.flow()
                    await asyncio.gather(*(job.result(timeout=10) for job in jobs))
                nodes = [node.worker for node in await app.client.views.workers()]
                last = worker.name
            await behind.aclose()
    assert len(set(reaped)) == rounds
    assert starts.twice == []
    assert starts.shared == []
    assert len(starts.fences) == rounds * 12
    assert nodes == [last], "a name that nobody uses is registered"


async def _two_trips_are_held_back(worker: Any, proxy: Any) -> None:
    """Both ask for jobs, and the server has heard neither."""
    fetcher = worker._fetcher
    await eventually(lambda: not fetcher.requested)
    proxy.stall("requests")
    fetcher.work_arrived()
    await eventually(lambda: fetcher.requested >= 4)  # a subscription that opens asks, too
    fetcher.work_arrived()
    await eventually(lambda: fetcher.requested == 8)


@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_a_worker_whose_slots_are_all_taken_gets_a_new_name_at_once(app: Penstock, executor: Any) -> None:
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    runs: list[int] = []

    async def wait(x: int) -> int:
        runs.append(x)
        await gate.wait()
        return x

    def wait_in_thread(x: int) -> int:
        runs.append(x)
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        return x

    slow = app.task(name="slow")(wait if executor == "async" else wait_in_thread)
    async with app.worker(concurrency=2, lease="300ms") as worker:
        jobs = [await slow.enqueue(n) for n in range(2)]
        for job in jobs:
            await in_state(job, "running")
        name = worker.name
        try:
            await app.client.engine.reap_worker(name, [], 300)
            await eventually(lambda: worker.name != name)
            await eventually(lambda: _is_registered(app, worker.name))
            assert sorted(runs) == [0, 1], "what still runs goes on, and nothing starts beside it"
        finally:
            gate.set()
        assert [await job.result(timeout=5) for job in jobs] == [0, 1]
        assert Counter(runs) == {0: 2, 1: 2}


async def _is_registered(app: Penstock, name: str) -> bool:
    return name in [node.worker for node in await app.client.views.workers()]


async def _is_running(app: Penstock, job_id: str) -> bool:
    return (await (await app.get_job(job_id)).status()).state == "running"


def _has_asked(session: Session | None) -> bool:
    """And was answered that there is nothing."""
    assert session is not None
    calls = session.registration.calls
    return calls.last > 0 and not calls.unanswered


async def test_a_job_that_comes_with_an_answer_older_than_the_lease_is_not_started(
    single: Server, unhandled: list[Any]
) -> None:
    runs: list[str] = []
    with proxied(single.port) as proxy:
        async with own_app(single, namespace()) as app:
            behind = Penstock(app.name, url=proxy.url)

            @app.task(name="work")
            async def work() -> None:
                runs.append("the other")

            @behind.task(name="work")
            async def work_late() -> None:
                runs.append("the one that stood still")

            async with behind.worker(lease="400ms", concurrency=1) as worker:
                name = worker.name
                await eventually(lambda: _has_asked(worker._session))
                proxy.stall("replies")  # it hears nothing any more
                job = await work.enqueue()
                worker._fetcher.work_arrived()
                await eventually(lambda: _is_running(app, job.id))
                proxy.stall("requests")  # nor does it renew, as if it were stopped
                async with app.worker(lease="400ms", concurrency=1):
                    await job.result(timeout=10)
                    proxy.flow()
                    await eventually(lambda: worker.name != name)
            await behind.aclose()
    assert runs == ["the other"]


async def test_a_stream_hands_out_nothing_that_came_with_an_answer_older_than_its_lease(
    single: Server, unhandled: list[Any]
) -> None:
    with proxied(single.port) as proxy:
        async with own_app(single, namespace()) as app:
            behind = Penstock(app.name, url=proxy.url, lease="400ms")

            @app.task(name="work")
            async def work() -> str:
                return "done"

            async with behind.queue("default").stream(limit=1) as leases:
                session = leases._session
                assert session is not None
                name = session.registration.name
                await eventually(lambda: _has_asked(session))
                proxy.stall("replies")
                job = await work.enqueue()
                leases._wake.set()
                await eventually(lambda: _is_running(app, job.id))
                proxy.stall("requests")
                async with app.worker(lease="400ms", concurrency=1):
                    assert await job.result(timeout=10) == "done"
                taking = asyncio.create_task(anext(leases))
                proxy.flow()
                await eventually(lambda: session.registration.name != name)
                last = await work.enqueue()
                lease = await asyncio.wait_for(taking, 10)
                assert lease.id == last.id, "the job that another worker has done is not handed out"
                await lease.complete()
            await behind.aclose()


async def test_a_worker_that_was_taken_for_dead_goes_on_under_a_new_name(app: Penstock) -> None:
    gate = asyncio.Event()
    errors: list[Any] = []

    @app.task
    async def slow(x: int) -> int:
        attempt = current_job().attempt
        await gate.wait()
        if attempt == 1:
            try:
                await current_job().progress(1)
            except StaleLease as error:
                errors.append(error)
                raise
        return 10 * x + attempt

    engine = app.client.engine
    async with app.worker(concurrency=2, lease="300ms") as worker:
        job = await slow.enqueue(1)
        await in_state(job, "running")
        name = worker.name
        assert await engine.reap_worker(name, [job.id], 300) == (1, 0)
        await eventually(lambda: worker.name != name)
        await eventually(lambda: _attempt(job, 2))
        gate.set()
        assert await job.result(timeout=5) == 12
        assert await (await slow.enqueue(2)).result(timeout=5) == 21
        assert len(errors) == 1
        assert [node.worker for node in await app.client.views.workers()] == [worker.name]
    assert [attempt.outcome for attempt in (await job.status()).attempts] == ["crash"]


async def _attempt(job: Job[Any], number: int) -> bool:
    status = await job.status()
    return status.state == "running" and status.attempt == number
