"""Workers of different code side by side: no worker is given a job of a task that only another one knows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from penstock import Penstock
from penstock.engine.read.views import Event
from penstock.engine.repair.audit import audit
from tests.app_helpers import eventually, twin
from tests.conftest import namespace
from tests.engine.factories import raw
from tests.worker.harness import Crew

LATER = """

@app.task(name="later", lock="{key}")
async def later(key: str) -> int:
    return os.getpid()
"""


@pytest.fixture
async def app(url: str) -> AsyncIterator[Penstock]:
    """The older code; it knows the tasks `both` and `old`."""
    made = Penstock(namespace(), url=url)
    _add(made, "both", "old")
    try:
        yield made
        assert await audit(made.client.engine) == []
    finally:
        await (await raw(made.client.engine)).delete(*made.client.engine.all_keys())
        await made.aclose()


@pytest.fixture
async def newer(app: Penstock) -> AsyncIterator[Penstock]:
    """The newer code; it knows the tasks `both` and `new`."""
    async with twin(app) as made:
        _add(made, "both", "new")
        yield made


def _add(app: Penstock, *names: str) -> None:
    """Tasks that answer which app ran them."""
    for name in names:
        app.task(name=name)(_answering(app))


def _answering(app: Penstock) -> Any:
    async def run(key: str = "") -> int:
        return id(app)

    return run


async def _events(app: Penstock, verb: str) -> list[Event]:
    return [event for event in await app.client.views.events("-") if event.verb == verb]


async def _are_idle(app: Penstock, workers: int) -> bool:
    """Whether so many workers have nothing to do, and are heard."""
    engine = app.client.engine
    client: Any = await raw(engine)
    names = [
        bytes(member)[2:].decode()
        for member in await client.zrange(engine.keys("idle"), 0, -1)
        if member[:2] == b"!\x1f"
    ]
    heard = [await client.execute_command("PUBSUB", "SHARDNUMSUB", engine.keys.channel(name)) for name in names]
    return len(names) == workers and all(number for _, number in heard)


@pytest.mark.parametrize("task", ["old", "new"])
@pytest.mark.parametrize("options", [{}, {"lock": "{key}"}], ids=["plain", "locked"])
async def test_fifty_jobs_that_one_of_two_workers_knows_are_done_at_once(
    app: Penstock, newer: Penstock, task: str, options: dict[str, Any]
) -> None:
    knows = app if task == "old" else newer
    job_task = knows.task(name="fifty", **options)(_answering(knows))
    async with app.worker(concurrency=4), newer.worker(concurrency=4):
        jobs = [await job_task.enqueue(f"key{n % 7}") for n in range(50)]
        answers = await asyncio.gather(*(job.result(timeout=4.5) for job in jobs))  # one put off would take 5 s
    assert set(answers) == {id(knows)}
    assert await _events(app, "snooze") == []


async def test_a_job_for_idle_workers_starts_at_the_one_that_knows_it(app: Penstock, newer: Penstock) -> None:
    knows = {"old": app, "new": newer}
    async with app.worker(), newer.worker():
        for task in ("old", "new", "new", "old"):
            await eventually(lambda: _are_idle(app, 2))
            job = await knows[task].tasks[task].enqueue()
            assert await job.result(timeout=4.5) == id(knows[task])
    assert await _events(app, "snooze") == []


async def test_many_idle_workers_that_do_not_know_a_job_are_no_hindrance(app: Penstock, newer: Penstock) -> None:
    """A page wakes as many of each kind as it brings jobs, however many others sleep."""
    async with AsyncExitStack() as stack:
        for _ in range(12):
            await stack.enter_async_context(newer.worker(concurrency=2))
        await stack.enter_async_context(app.worker(concurrency=2))
        await eventually(lambda: _are_idle(app, 13))
        old = app.tasks["old"]
        jobs = await app.enqueue_many(old.call(f"{n}") for n in range(8))
        answers = await asyncio.gather(*(job.result(timeout=4.5) for job in jobs))
    assert set(answers) == {id(app)}
    assert await _events(app, "snooze") == []


@pytest.mark.long
async def test_a_rolling_deploy_starves_no_job(crew: Crew) -> None:
    """Real processes: newer code comes and the older one is there still, then leaves."""
    older = await crew.started("-c", "4")
    (crew.folder / "tasks.py").write_text((crew.folder / "tasks.py").read_text() + LATER)
    await crew.started("-c", "4")
    late = crew.app.task(name="later", lock="{key}")(_answering(crew.app))
    jobs = [await late.enqueue(f"key{n % 5}") for n in range(50)]
    pids = {await job.result(timeout=4.5) for job in jobs}
    assert len(pids) == 1
    assert await crew.events("snooze") == []
    await crew.stop(older)
    assert await (await late.enqueue("key")).result(timeout=10) in pids
