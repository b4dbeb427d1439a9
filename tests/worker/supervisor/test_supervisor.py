"""A supervisor: rolling restarts, replacing processes, and stopping."""

import asyncio
import random
import signal

import pytest

from tests.app_helpers import eventually
from tests.worker.harness import Crew, gone, tree


async def _rolling(crew: Crew, seconds: float, longest: float) -> None:
    first = await crew.started("-c", "10", "-p", "2", children=2)
    jobs = []
    second = None
    draw = random.Random(7)
    until = asyncio.get_running_loop().time() + seconds
    turn = until - seconds / 2
    while (now := asyncio.get_running_loop().time()) < until:
        jobs.append(await crew.tasks.slow.enqueue(draw.choice([0.01, 0.05, 0.2, 1.0])))
        if len(jobs) % 40 == 1:
            jobs.append(await crew.tasks.block.enqueue(longest))
        if second is None and now > turn:
            second = await crew.started("-c", "10", "-p", "2", children=2)
            first.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.03)
    assert second is not None
    await crew.all_in("done", within=120)
    assert await eventually(lambda: None if first.poll() is None else [first.poll()], within=60) == [0]
    assert crew.count() == {job.id: 1 for job in jobs}
    headers = [await crew.header(job) for job in jobs]
    assert {header.attempt for header in headers} == {1}
    assert {header.crashes + header.failures for header in headers} == {0}
    assert await crew.stop(second) == 0


async def test_a_rolling_restart_under_load_cuts_nothing_that_is_shorter_than_the_grace(crew: Crew) -> None:
    await _rolling(crew, 8.0, 6.0)


async def test_a_job_that_outlasts_the_grace_runs_again_without_using_an_attempt(crew: Crew) -> None:
    first = await crew.started("--grace", "1s")
    jobs = [await crew.tasks.slow.enqueue(4.0), await crew.tasks.block.enqueue(8.0)]
    await crew.until_started(2)
    assert await crew.stop(first) == 0
    await crew.started()
    await crew.all_in("done")
    assert [(await crew.header(job)).attempt for job in jobs] == [1, 1]
    assert crew.count("start") == {job.id: 2 for job in jobs}


@pytest.mark.long
async def test_a_rolling_restart_with_jobs_of_40_seconds(crew: Crew) -> None:
    first = await crew.started("-c", "10", lease="10s")
    jobs = [await crew.tasks.slow.enqueue(seconds) for seconds in (0.01, 5, 20, 40)]
    await crew.until_started(4)
    await crew.started("-c", "10", lease="10s")
    assert await crew.stop(first) == 0
    await crew.all_in("done", within=120)
    assert crew.count() == {job.id: 1 + (job is jobs[3]) for job in jobs}
    assert {(await crew.header(job)).attempt for job in jobs} == {1}


async def test_a_second_signal_ends_everything_at_once(crew: Crew) -> None:
    worker = await crew.started("-p", "2", children=2)
    jobs = [await crew.tasks.slow.enqueue(60.0), await crew.tasks.hold_the_gil.enqueue(60.0)]
    await crew.until_started(2)
    pids = tree(worker.pid)
    worker.send_signal(signal.SIGTERM)
    await eventually(lambda: "again to stop at once" in crew.log())
    worker.send_signal(signal.SIGTERM)
    await eventually(lambda: worker.poll() is not None, within=20)
    await gone(*pids)
    assert worker.returncode == 0
    assert [(await crew.header(job)).state for job in jobs] == ["ready", "ready"]
    assert [(await crew.header(job)).attempt for job in jobs] == [0, 0]
    assert await crew.nodes() == []


async def test_processes_are_replaced_after_so_many_jobs(crew: Crew) -> None:
    worker = await crew.started("-c", "2", "--max-jobs", "5")
    await crew.app.enqueue_many(crew.tasks.quick.call(n) for n in range(20))
    await crew.all_in("done")
    jobs_of = [line.pid for line in crew.lines()]
    assert len(jobs_of) == 20
    assert max(jobs_of.count(pid) for pid in jobs_of) <= 5
    assert await crew.stop(worker) == 0


async def test_processes_are_replaced_by_age_and_by_memory(crew: Crew) -> None:
    worker = await crew.started("--max-rss", "1m")
    (before,) = await crew.nodes()
    await eventually(lambda: _is_another(crew, before.worker), within=30)
    assert await crew.stop(worker) == 0
    worker = await crew.started("--max-age", "1s")
    (before,) = await crew.nodes()
    await eventually(lambda: _is_another(crew, before.worker), within=30)
    assert await crew.stop(worker) == 0


async def _is_another(crew: Crew, name: str) -> bool:
    return all(node.worker != name for node in await crew.nodes())


async def test_a_worker_whose_app_fails_at_the_start_says_so_and_ends(crew: Crew) -> None:
    text = (crew.folder / "tasks.py").read_text()
    (crew.folder / "tasks.py").write_text(
        text.replace('    yield "state"', '    raise RuntimeError("no database")\n    yield')
    )
    worker = crew.start()
    await eventually(lambda: worker.poll() is not None, within=30)
    assert worker.returncode == 1
    assert "no database" in crew.log()


async def test_a_task_that_swallows_its_cancelling_does_not_hold_up_the_end(crew: Crew) -> None:
    worker = await crew.started("--grace", "1s")
    job = await crew.tasks.deaf.enqueue()
    await crew.until_started(1)
    began = asyncio.get_running_loop().time()
    assert await crew.stop(worker) == 0
    took = asyncio.get_running_loop().time() - began
    print(f"ended after {took:.1f} s")
    assert took < 5  # a second of grace, a second after it, and a machine that may be busy
    assert len(crew.lines("cancelled")) == 1
    header = await crew.header(job)
    assert (header.state, header.crashes) == ("ready", 0)
