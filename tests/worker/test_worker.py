"""A worker in a program: its options, and two of them side by side."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from penstock import (
    BadOption,
    Penstock,
    current_job,
)
from tests.app_helpers import on_both

LONG = "x" * 10_000


@pytest.mark.parametrize(
    "queues", ["", "a,,b", "a b", "a:0", "a:1,b", "*,a", "a,a", "a{b}", ["a\nb"], [LONG], "a:-1,b c"]
)
def test_bad_queues_of_a_worker_are_refused(queues: Any) -> None:
    app = Penstock("never-connected", url="redis://127.0.0.1:1")
    with pytest.raises(BadOption, match="queue"):
        app.worker(queues=queues)


@pytest.mark.parametrize("options", [{"lease": "soon"}, {"lease": -1}, {"grace": "soon"}, {"grace": -1}])
def test_bad_times_of_a_worker_are_refused(options: Any) -> None:
    app = Penstock("never-connected", url="redis://127.0.0.1:1")
    with pytest.raises(BadOption):
        app.worker(**options)


@on_both
async def test_two_workers_share_the_work_and_run_everything_once(app: Penstock) -> None:
    ran: Counter[int] = Counter()
    names: set[str] = set()

    @app.task
    async def note(x: int) -> None:
        ran[x] += 1
        names.add(current_job()._worker)
        await asyncio.sleep(0.001)

    jobs = await app.enqueue_many(note.call(number) for number in range(500))
    async with app.worker(concurrency=10), app.worker(concurrency=10):
        await asyncio.gather(*(job.result(timeout=20) for job in jobs))
    assert ran == Counter(range(500))
    assert len(names) == 2
