"""Jobs of tasks that no worker knows: put off, not charged, and buried after ten minutes."""

from typing import Any

import pytest

from penstock import (
    Penstock,
)
from penstock.engine.read.views import Views
from penstock.worker import unknown_tasks
from tests.app_helpers import in_state, twin
from tests.worker.harness import Crew


async def test_a_task_that_this_worker_does_not_know_is_put_off_and_not_charged(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown_tasks, "MIN_DELAY", 500)

    @app.task
    async def known() -> int:
        return 1

    async with twin(app) as newer:

        @newer.task(name="brand:new", retries=0)
        async def new() -> int:
            return 2

        job = await new.enqueue()
        async with app.worker():
            await in_state(job, "scheduled")
            assert await (await known.enqueue()).result(timeout=5) == 1
        status = await job.status()
        assert (status.state, status.reason, status.attempt) == ("scheduled", "unknown_task", 0)
        assert "unknown_task" in await job.explain()
        async with newer.worker():
            assert await job.result(timeout=10) == 2


async def test_a_task_that_nobody_has_known_for_ten_minutes_is_buried(crew: Crew) -> None:
    from penstock.worker.unknown_tasks import UnknownTasks

    unknown = UnknownTasks(Views(crew.app.client.engine))
    job = await crew.tasks.app.find_task("quick").enqueue(1)
    record = await crew.app.client.views.job(job.id)
    assert record is not None
    from msgspec.structs import replace

    from penstock.engine.answers import Lease
    from penstock.engine.record.record import read_running, write

    def lease(reason: str, now: int) -> Lease:
        header = replace(record.header, state="running", task="newer", reason=reason, size=0)
        running = read_running(write(replace(header, claim="w\x1f1", started=now, fence=1), b""))
        return Lease(job.id, running, b"", running.ready)

    now = 1_800_000_000_000
    outcome: Any = await unknown.outcome(lease("", now))
    assert (outcome.reason, outcome.delay) == ("unknown_task", 5_000)
    delays = []
    while hasattr(outcome, "delay"):
        now += outcome.delay
        outcome = await unknown.outcome(lease(outcome.reason, now))
        delays.append(getattr(outcome, "delay", 0))
    assert outcome.reason == "unknown_task"
    assert "no live worker" in outcome.error
    assert 600_000 <= now - 1_800_000_000_000 <= 700_000
    assert max(delays) == 60_000
