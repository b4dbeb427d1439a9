"""Cancelling a job that waits or runs."""

import asyncio
import threading
import time
from typing import Any

import pytest

from penstock import (
    JobCancelled,
    Penstock,
    current_job,
)
from penstock.engine.answers import Leased
from penstock.engine.transport.script_client import ScriptCall, ScriptClient
from penstock.worker.slots import Slots
from tests.app_helpers import in_state, on_both, twin


async def test_a_waiting_job_that_is_cancelled_never_runs(app: Penstock) -> None:
    ran: list[int] = []

    @app.task
    async def note(x: int) -> None:
        ran.append(x)

    jobs = [await note.enqueue(0), await note.using(delay="10ms").enqueue(1)]
    assert [await job.cancel() for job in jobs] == ["cancelled", "cancelled"]
    kept = await note.using(delay="30ms").enqueue(2)
    async with app.worker():
        await kept.result(timeout=5)
    assert ran == [2]


@on_both
async def test_a_running_async_job_is_cancelled_within_a_second(app: Penstock) -> None:
    steps: list[str] = []

    @app.task
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            steps.append("cancelled" if current_job().cancelling else "stopped")
            raise

    async with app.worker(), twin(app) as elsewhere:
        jobs = [await slow.enqueue() for _ in range(10)]
        for job in jobs:
            await in_state(job, "running")
        began = time.monotonic()
        assert [await (await elsewhere.get_job(job.id)).cancel() for job in jobs] == ["cancelling"] * 10
        for job in jobs:
            with pytest.raises(JobCancelled):
                await job.result(timeout=5)
        assert time.monotonic() - began < 1
        assert steps == ["cancelled"] * 10
        assert await jobs[0].cancel() == "cancelled"
        status = await jobs[0].status()
        assert (status.state, status.reason, status.cancelling) == ("cancelled", "cancelled", False)


async def test_a_thread_sees_that_it_is_cancelled_and_others_go_on(app: Penstock) -> None:
    started = threading.Event()

    @app.task
    def slow() -> None:
        started.set()
        while not current_job().cancelling:
            time.sleep(0.005)

    @app.task
    async def quick() -> int:
        return 1

    async with app.worker(concurrency=2):
        job = await slow.enqueue()
        await asyncio.to_thread(started.wait, 5)
        assert await job.cancel() == "cancelling"
        assert await (await quick.enqueue()).result(timeout=5) == 1
        with pytest.raises(JobCancelled):
            await job.result(timeout=2)


async def test_a_job_that_will_not_be_cancelled_and_returns_is_done(app: Penstock) -> None:
    @app.task
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "finished nevertheless"
        return ""

    async with app.worker():
        job = await stubborn.enqueue()
        await in_state(job, "running")
        assert await job.cancel() == "cancelling"
        assert await job.result(timeout=5) == "finished nevertheless"


async def test_a_job_that_fails_while_it_is_cancelled_is_cancelled(app: Penstock) -> None:
    @app.task
    async def clumsy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("while cleaning up")

    async with app.worker():
        job = await clumsy.enqueue()
        await in_state(job, "running")
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=5)


async def test_a_cancel_in_the_turn_in_which_a_job_starts_is_heard(app: Penstock, monkeypatch: Any) -> None:
    """As when the lease's answer and the message are read in one turn of the loop: about 1 in 200 cancels at start."""
    start = Slots.start

    def and_cancel(self: Slots, leased: Leased, *rest: Any) -> None:
        start(self, leased, *rest)
        for lease in leased.leases:
            self.cancel(lease.id, may_arrive=True)

    monkeypatch.setattr(Slots, "start", and_cancel)

    @app.task
    async def slow() -> None:
        await asyncio.sleep(60)

    async with app.worker(concurrency=1, grace=0.1, lease="600ms") as worker:
        job = await slow.enqueue()
        await in_state(job, "running")
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=3)
        assert worker._slots.busy == 0


async def test_a_cancel_that_comes_before_the_leases_answer_is_heard_within_a_second(
    app: Penstock, monkeypatch: Any
) -> None:
    together = ScriptClient.together

    async def late(self: ScriptClient, *calls: ScriptCall[Any], **options: Any) -> list[Any]:
        answers = await together(self, *calls, **options)
        if calls[-1].script.name == "lease":
            for lease in calls[-1].decode(answers[-1]).leases:
                await app.client.engine.cancel([lease.id])
                await asyncio.sleep(0.05)  # the message is read first
        return answers

    monkeypatch.setattr(ScriptClient, "together", late)

    @app.task(lock="door")  # so that it is leased, and is not pushed
    async def slow() -> None:
        await asyncio.sleep(60)

    async with app.worker(grace=0.1):
        with pytest.raises(JobCancelled):
            await (await slow.enqueue()).result(timeout=2)  # takes until the next renewal, 10 s


async def test_cleaning_up_after_a_cancel_is_not_cancelled_again(app: Penstock) -> None:
    steps: list[str] = []

    @app.task
    async def careful() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.5)
            steps.append("clean")

    async with app.worker(lease="300ms"):
        job = await careful.enqueue()
        await in_state(job, "running")
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=5)
    assert steps == ["clean"]
