"""Processes that are killed or stopped: their jobs run again soon, and only once more."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.app_helpers import eventually, on_both
from tests.servers import Server
from tests.worker.harness import LEASE, Crew, alive, crew_at, gone, pause, tree


@on_both
async def test_the_jobs_of_a_killed_child_are_reaped_at_once_and_started_again(crew: Crew) -> None:
    supervisor = await crew.started("-p", "2", "-c", "4", children=2)
    jobs = [await crew.tasks.slow.enqueue(3.0) for _ in range(4)]
    victim = (await crew.until_started(4))[0].pid
    lost = {line.job for line in crew.lines() if line.pid == victim}
    killed = await crew.server_time()
    os.kill(victim, signal.SIGKILL)
    await crew.until_started(4 + len(lost))
    reaped = [event for event in await crew.events("reap") if event.job in lost]
    again = [event for event in await crew.events("lease") if event.job in lost and event.at >= killed]
    late = max(event.at for event in reaped) - killed, max(event.at for event in again) - killed
    print(f"reaped after {late[0]:.0f} ms, started again after {late[1]:.0f} ms by the server's clock")
    assert late[0] < 2_000
    assert late[1] < 5_000
    await crew.all_in("done")
    assert crew.count() == {job.id: 1 + (job.id in lost) for job in jobs}
    assert [(await crew.header(job)).crashes for job in jobs] == [int(job.id in lost) for job in jobs]
    (attempt,) = (await jobs[[job.id in lost for job in jobs].index(True)].status()).attempts
    assert "SIGKILL" in str(attempt)
    assert await crew.stop(supervisor) == 0


async def test_the_spare_takes_the_place_of_a_killed_child(crew: Crew) -> None:
    supervisor = await crew.started()
    await eventually(lambda: len(tree(supervisor.pid)) == 2, within=30)
    await pause(2)  # until the spare has imported the app; nobody outside can tell
    job = await crew.tasks.slow.enqueue(1.0)
    (line,) = await crew.until_started(1)
    killed = await crew.server_time()
    os.kill(line.pid, signal.SIGKILL)
    await crew.until_started(2)
    again = max(event.at for event in await crew.events("lease")) - killed
    print(f"started again by the spare after {again:.0f} ms")
    assert again < 10_000
    await job.result(timeout=20)
    assert crew.count() == {job.id: 2}


@pytest.mark.parametrize("lease_seconds", [LEASE, pytest.param(10.0, marks=pytest.mark.long)])
async def test_children_die_with_their_supervisor_and_another_worker_takes_their_jobs(
    crew: Crew, lease_seconds: float
) -> None:
    lease = f"{lease_seconds:g}s"
    supervisor = await crew.started("-p", "2", children=2, lease=lease)
    await crew.tasks.until.using(queue="mine").enqueue("go")  # on a busy machine the next worker takes long to start
    await crew.tasks.block_until.using(queue="mine").enqueue("go")
    await crew.until_started(2)
    await crew.started(lease=lease)
    pids = tree(supervisor.pid)
    killed = await crew.server_time()
    supervisor.kill()
    supervisor.wait()
    await gone(*pids)
    await crew.until_started(4)
    again = max(event.at for event in await crew.events("lease")) - killed
    print(f"run again after {again / 1000:.1f} s; a lease is {lease_seconds:g} s")
    assert again < (lease_seconds + 15) * 1000
    crew.let_end("go")
    await crew.all_in("done")
    assert set(crew.count().values()) == {2}


async def test_a_tree_that_slept_for_three_leases_overwrites_nothing_and_goes_on(crew: Crew) -> None:
    frozen = await crew.started()
    job = await crew.tasks.slow.enqueue(1.0)
    (first,) = await crew.until_started(1)
    pids = [frozen.pid, *tree(frozen.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    other = await crew.started(children=1)
    await pause(3 * LEASE)
    await crew.all_in("done")
    result = await job.result(timeout=10)
    assert result != str(first.pid)
    assert await crew.stop(other) == 0
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    before = await crew.server_time()
    fresh = await crew.tasks.quick.enqueue(7)
    assert await fresh.result(timeout=30) == 7
    (taken,) = [event.at for event in await crew.events("lease") if event.job == fresh.id]
    print(f"new work taken after {taken - before:.0f} ms")
    await eventually(lambda: "what it did was refused" in crew.log(), within=20)
    assert await crew.app.find_task("slow").job(job.id).result(timeout=5) == result
    assert await crew.stop(frozen) == 0


async def test_a_long_job_survives_a_server_that_is_stopped(tmp_path: Path, own_server: Server) -> None:
    async with crew_at(tmp_path, own_server.url) as crew:
        await crew.started()
        job = await crew.tasks.slow.enqueue(22.0)
        await crew.until_started(1)
        own_server.process.send_signal(signal.SIGSTOP)
        await pause(20)
        own_server.process.send_signal(signal.SIGCONT)
        await job.result(timeout=40)
        assert crew.count() == {job.id: 1}
        assert (await crew.header(job)).starts == 1
        assert crew.log().count("cannot be used") <= 4  # one line of each process, for each kind of error
        assert "can be used again" in crew.log()


async def test_a_job_that_holds_the_gil_for_five_leases_runs_once(crew: Crew) -> None:
    await crew.started("-p", "2", children=2)
    job = await crew.tasks.hold_the_gil.enqueue(5 * LEASE)
    await job.result(timeout=60)
    assert crew.count() == {job.id: 1}
    assert (await crew.header(job)).starts == 1


async def test_a_job_that_blocks_its_process_beyond_its_timeout_is_charged_alone(crew: Crew) -> None:
    await crew.started("-c", "4")
    beside = await crew.tasks.slow.enqueue(0.5)
    await crew.until_started(1)
    job = await crew.tasks.hold_the_gil_too_long.using(queue="default").enqueue(600.0)
    await eventually(lambda: _crashes(crew, job, 1), within=60)
    await job.cancel()
    await crew.all_in("done", "cancelled")
    assert (await crew.header(beside)).crashes == 0
    assert "its timeout" in crew.log() or "the time of" in crew.log()


async def _crashes(crew: Crew, job: object, many: int) -> bool:
    return bool((await crew.header(job)).crashes >= many)


@pytest.mark.parametrize("kind", ["killed", "timeout"])
async def test_an_endless_process_job_is_killed_and_nothing_is_left(crew: Crew, kind: str) -> None:
    supervisor = await crew.started("-c", "1")
    job = await crew.tasks.endless.enqueue()
    (line,) = await crew.until_started(1)
    if kind == "killed":
        (node,) = await crew.nodes()
        child = next(pid for pid in tree(supervisor.pid) if node.worker.split("-")[-2] == str(pid))
        os.kill(child, signal.SIGKILL)
    await gone(line.pid, within=20)
    print(f"\n{kind}: the process was gone {time.time() - line.at:.2f} s after the job had begun")
    await crew.all_in("dead", within=60)
    header = await crew.header(job)
    if kind == "timeout":
        assert (header.reason, header.failures, header.crashes) == ("retries_exhausted", 1, 0)
    else:
        assert (header.reason, header.failures, header.crashes) == ("retries_exhausted", 1, 1)
    for line in crew.lines():
        assert not alive(line.pid)
    assert await (await crew.tasks.quick.enqueue(1)).result(timeout=20) == 1
    assert await crew.stop(supervisor) == 0
