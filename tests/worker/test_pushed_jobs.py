"""An idle worker is sent its next job, and starts each job once."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from penstock import Penstock
from penstock.worker.fetch import Fetcher
from penstock.worker.session import MAX_CALLS_AHEAD, CallNumbers
from tests.app_helpers import eventually, in_state, on_both
from tests.engine.factories import raw


async def is_idle(app: Penstock, workers: int = 1) -> bool:
    """Whether so many have nothing to do, and are heard."""
    engine = app.client.engine
    client: Any = await raw(engine)
    members = [bytes(member) for member in await client.zrange(engine.keys("idle"), 0, -1)]
    names = [member[2:].decode() for member in members if member.startswith(b"!\x1f")]
    heard = [await client.execute_command("PUBSUB", "SHARDNUMSUB", engine.keys.channel(name)) for name in names]
    return len(names) == workers and all(number for _, number in heard)


def pushed_messages(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What workers are sent from now on."""
    messages, take = [], Fetcher.job_pushed

    def note(self: Fetcher, message: bytes) -> None:
        messages.append(message)
        take(self, message)

    monkeypatch.setattr(Fetcher, "job_pushed", note)
    return messages


@on_both
async def test_the_next_job_of_an_idle_worker_is_pushed_to_it(app: Penstock, monkeypatch: Any) -> None:
    @app.task
    async def double(n: int, padding: str = "") -> int:
        return 2 * n

    messages = pushed_messages(monkeypatch)
    async with app.worker(concurrency=2):
        for n, padding in enumerate(["", "." * 300, "." * 3000]):
            await eventually(lambda: is_idle(app))
            assert await (await double.enqueue(n, padding)).result(timeout=5) == 2 * n
            assert len(messages) == n + 1


async def test_a_worker_that_runs_a_job_is_woken_for_others(app: Penstock, monkeypatch: Any) -> None:
    go = asyncio.Event()

    @app.task
    async def first() -> None:
        await go.wait()

    @app.task
    async def second() -> str:
        return "while the first one runs"

    messages = pushed_messages(monkeypatch)
    async with app.worker(concurrency=2):
        await eventually(lambda: is_idle(app))
        slow = await first.enqueue()
        await in_state(slow, "running")
        assert await (await second.enqueue()).result(timeout=5) == "while the first one runs"
        assert len(messages) == 1
        go.set()
        await slow.result(timeout=5)


async def test_a_worker_that_stops_gives_its_pushed_job_back(app: Penstock) -> None:
    @app.task
    async def anything() -> None: ...

    async with app.worker() as worker:
        await eventually(lambda: is_idle(app))
        worker._slots.is_draining = True
        job = await anything.enqueue()
        await in_state(job, "ready")
        assert (await job.status()).attempt == 0


async def test_a_job_pushed_to_a_worker_that_lost_the_message_runs_at_its_next_lease(
    app: Penstock, monkeypatch: Any
) -> None:
    @app.task
    async def answer() -> int:
        return 42

    monkeypatch.setattr(Fetcher, "job_pushed", lambda _fetcher, _message: None)
    async with app.worker() as worker:
        await eventually(lambda: is_idle(app))
        job = await answer.enqueue()
        await in_state(job, "running")
        worker._fetcher.work_arrived()
        assert await job.result(timeout=2) == 42
        assert (await job.status()).attempt == 1


@pytest.mark.parametrize("size", [400, pytest.param(20_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
async def test_every_job_runs_once_while_subscriptions_break(app: Penstock, size: int) -> None:
    runs: Counter[int] = Counter()

    @app.task
    async def note(n: int) -> None:
        runs[n] += 1
        await asyncio.sleep(random.choice([0, 0, 0.002]))

    async def cut() -> None:
        client = await raw(app.client.engine)
        while True:
            await asyncio.sleep(random.uniform(0.01, 0.05))
            await client.execute_command("CLIENT", "KILL", "TYPE", "PUBSUB")

    async with app.worker(concurrency=1), app.worker(concurrency=3):
        cutting = asyncio.create_task(cut())
        jobs = []
        for n in range(size):
            jobs.append(await note.enqueue(n))
            if n % 3:
                await asyncio.sleep(random.uniform(0, 0.006))
        cutting.cancel()
        await eventually(lambda: len(runs) == size, within=30)
        for job in jobs[-5:]:
            await job.result(timeout=10)
    assert set(runs.values()) == {1}


def test_a_worker_does_not_go_too_far_ahead_of_a_call_that_is_not_answered() -> None:
    numbers = CallNumbers()
    first = numbers.take()
    for _ in range(MAX_CALLS_AHEAD - 1):
        assert not numbers.is_too_far_ahead
        assert numbers.mark_answered(numbers.take())
    assert numbers.is_too_far_ahead
    numbers.give_back(first)
    assert not numbers.is_too_far_ahead  # the next is the first again
    assert numbers.take() == first
    assert numbers.is_too_far_ahead
    assert numbers.mark_answered(first)
    assert not numbers.is_too_far_ahead


def test_calls_that_pushed_jobs_answer_are_numbered_without_gaps() -> None:
    numbers = CallNumbers()
    first, second = numbers.take(), numbers.take()
    assert (first, second) == (1, 2)
    assert numbers.mark_answered(1)
    assert numbers.mark_pushed(2)  # on its way
    assert not numbers.mark_answered(2)
    assert numbers.mark_pushed(3)  # yet to be made
    assert not numbers.mark_pushed(3)
    assert (numbers.answered_up_to, numbers.take()) == (3, 4)
    numbers.give_back(4)
    assert numbers.mark_pushed(4)  # lost
    assert (numbers.answered_up_to, numbers.take()) == (4, 5)
    assert numbers.mark_pushed(5)
    numbers.give_back(5)  # its answer was lost, and the job had been pushed before
    assert numbers.take() == 6
    assert not numbers.mark_pushed(8)
