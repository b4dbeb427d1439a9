"""Suspects, jobs that ran at two crashes: they run in processes of their own and are charged alone."""

import json
import os
import signal

from penstock import Penstock
from tests.app_helpers import eventually
from tests.worker.harness import Crew, gone, tree


async def suspected(crew: Crew, job: object) -> None:
    """Have it be there at two crashes; it must be the only job, and no worker there."""
    engine, job_id = crew.app.client.engine, str(getattr(job, "id", ""))
    for name in (f"lost-1-{job_id}", f"lost-2-{job_id}"):
        await engine.register(name, 60_000, "{}", ["*"])
        leased = await engine.lease(name, 1, queues=["*"], want=1, answered=0)
        assert [lease.id for lease in leased.leases] == [job_id]
        await engine.reap_worker(name, [job_id], 60_000)
    assert (await crew.header(job)).crashes == 2


async def test_other_jobs_start_and_end_while_an_innocent_suspect_runs(crew: Crew) -> None:
    job = await crew.tasks.until.enqueue("go")
    await suspected(crew, job)
    await crew.started("-c", "3")
    (line,) = await crew.until_started(1)
    others = [await crew.tasks.quick.enqueue(n) for n in range(10)]
    for n, other in enumerate(others):
        assert await other.result(timeout=30) == n
    assert {line.pid for line in crew.lines() if line.job != job.id}.isdisjoint({line.pid})
    crew.let_end("go")
    assert await job.result(timeout=30) == line.pid
    header = await crew.header(job)
    assert (header.state, header.crashes, crew.count()[job.id]) == ("done", 2, 1)


async def test_a_suspect_that_kills_its_process_is_buried_and_no_other_job_is_charged(crew: Crew) -> None:
    job = await crew.tasks.die.enqueue("killed")
    await suspected(crew, job)
    beside = await crew.tasks.until.enqueue("go")
    await crew.started("-c", "3")
    await eventually(lambda: _is_dead(crew, job), within=30)
    header = await crew.header(job)
    assert (header.reason, header.crashes, crew.count()[job.id]) == ("crash_loop", 3, 1)
    record = await crew.app.client.views.job(job.id)
    assert record is not None
    assert json.loads(record.attempts[-1].error)["message"] == "the process of the job was killed by SIGKILL"
    crew.let_end("go")
    await crew.all_in("done", "dead")
    assert ((await crew.header(beside)).crashes, crew.count()[beside.id]) == (0, 1)


async def _is_dead(crew: Crew, job: object) -> bool:
    return bool((await crew.header(job)).state == "dead")


async def test_a_suspect_is_not_charged_with_the_death_of_its_worker(crew: Crew) -> None:
    job = await crew.tasks.until.enqueue("go")
    await suspected(crew, job)
    supervisor = await crew.started("-c", "3")
    (line,) = await crew.until_started(1)
    (node,) = await crew.nodes()
    child = next(pid for pid in tree(supervisor.pid) if node.worker.split("-")[-2] == str(pid))
    os.kill(child, signal.SIGKILL)
    await gone(line.pid)
    await crew.until_started(2)
    crew.let_end("go")
    await job.result(timeout=30)
    assert (await crew.header(job)).crashes == 2


async def test_a_suspect_of_any_kind_finds_in_its_process_what_it_needs(crew: Crew) -> None:
    job = await crew.tasks.tells_of_itself.enqueue()
    await suspected(crew, job)
    supervisor = await crew.started("-c", "3")
    attempt, state, pid = await job.result(timeout=30)
    assert (attempt, state) == (3, "state")
    assert (await job.status()).progress is not None
    await eventually(lambda: "a line of a suspect" in crew.log())
    assert await crew.stop(supervisor) == 0
    with_loop = await crew.tasks.guarded_too.enqueue("key", 0.0)  # a `def` that runs a loop of its own
    await suspected(crew, with_loop)
    await crew.started("-c", "3")
    await with_loop.result(timeout=30)
    assert pid not in {line.pid for line in crew.lines() if line.job == with_loop.id}


async def test_a_suspect_that_no_other_process_can_import_runs_among_the_others(app: Penstock) -> None:
    @app.task
    async def local(n: int) -> int:
        return n

    job, engine = await local.enqueue(7), app.client.engine
    for name in ("lost-1", "lost-2"):
        await engine.register(name, 60_000, "{}", ["*"])
        await engine.lease(name, 1, queues=["*"], want=1, answered=0)
        await engine.reap_worker(name, [job.id], 60_000)
    async with app.worker(concurrency=2):
        assert await job.result(timeout=30) == 7
    assert [attempt.outcome for attempt in (await job.status()).attempts] == ["crash", "crash"]
