"""`executor="process"`: each job begins in a clean process, and everything that it started ends with it."""

import os
import signal
from pathlib import Path

import pytest

from tests.app_helpers import eventually
from tests.worker.harness import Crew, gone, output_of, tree


async def test_a_job_does_not_see_what_another_did_to_its_process(crew: Crew) -> None:
    await crew.started("-c", "1")
    before = await (await crew.tasks.looks.enqueue()).result(timeout=30)
    spoilt = [await crew.tasks.spoil.enqueue() for _ in range(2)]
    job = await crew.tasks.looks.enqueue()
    assert await job.result(timeout=30) == before
    assert before == [_folder(crew), before[1], None, True]
    assert (await crew.header(job)).crashes == 0
    await crew.all_in("done", "dead")
    assert len({line.pid for line in crew.lines()}) == len(crew.lines()) >= 2 + len(spoilt)


def _folder(crew: Crew) -> str:
    return str(crew.folder.resolve())


async def _child(crew: Crew, job: object) -> int:
    rows = [line.split() for line in crew.ledger.read_text().splitlines()]
    return next(int(row[0].removeprefix("child:")) for row in rows if row[0].startswith("child:") and row[1] == job)


async def test_processes_that_a_job_started_end_with_it_however_it_ends(crew: Crew) -> None:
    supervisor = await crew.started("-c", "4")
    task = crew.tasks.with_a_child
    ended = await task.enqueue(0.0)
    await gone(await ended.result(timeout=30))
    late, cancelled, cut = [await task.using(timeout="500ms").enqueue(600.0)] + [
        await task.enqueue(600.0) for _ in "ab"
    ]
    await eventually(lambda: crew.ledger.read_text().count("child:") == 4, within=30)
    await gone(await _child(crew, late.id))
    await eventually(lambda: _is_dead(crew, late), within=20)
    assert await cancelled.cancel() == "cancelling"
    await gone(await _child(crew, cancelled.id))
    (node,) = await crew.nodes()
    child = next(pid for pid in tree(supervisor.pid) if node.worker.split("-")[-2] == str(pid))
    first = await _child(crew, cut.id)
    os.kill(child, signal.SIGKILL)
    await gone(first)
    await eventually(lambda: crew.ledger.read_text().count("child:") == 5, within=30)
    pids = tree(supervisor.pid)
    await cut.cancel()
    await crew.all_in("done", "dead", "cancelled")
    assert (await crew.header(late)).crashes == (await crew.header(cancelled)).crashes == 0
    assert await crew.stop(supervisor) == 0
    await gone(*pids)


async def _is_dead(crew: Crew, job: object) -> bool:
    return bool((await crew.header(job)).state == "dead")


async def test_no_job_is_charged_when_no_process_can_be_started(crew: Crew) -> None:
    file = crew.folder / "tasks.py"
    file.write_text(
        file.read_text() + "\nif 'penstock.worker.executors.fork_server' in sys.orig_argv:\n    os._exit(3)\n"
    )
    await crew.started("-c", "4")
    job = await crew.tasks.looks.enqueue()
    await eventually(lambda: _is_put_off(crew, job), within=30)
    header = await crew.header(job)
    assert (header.crashes, header.failures) == (0, 0)
    assert "no process for a job could be started" in crew.log()
    assert crew.lines() == []
    assert await (await crew.tasks.quick.enqueue(1)).result(timeout=30) == 1


async def _is_put_off(crew: Crew, job: object) -> bool:
    header = await crew.header(job)
    return bool(header.state == "scheduled" and header.reason == "no_process")


async def test_a_new_fork_server_starts_jobs_when_the_first_one_was_killed(crew: Crew) -> None:
    supervisor = await crew.started("-c", "4")
    await (await crew.tasks.looks.enqueue()).result(timeout=30)
    (template,) = [pid for pid in tree(supervisor.pid) if b"penstock.worker.executors.fork_server" in _command(pid)]
    os.kill(template, signal.SIGKILL)
    await gone(template)
    job = await crew.tasks.looks.enqueue()
    await job.result(timeout=30)
    assert (await crew.header(job)).crashes == 0


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_a_module_that_starts_threads_has_its_jobs_run_in_processes_started_by_exec(crew: Crew) -> None:
    file = crew.folder / "tasks.py"
    more = "import threading\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
    file.write_text(file.read_text() + more)
    await crew.started("-c", "4")
    jobs = [await crew.tasks.looks.enqueue() for _ in range(3)]
    for job in jobs:
        assert (await job.result(timeout=60))[0] == _folder(crew)
    child = await (await crew.tasks.with_a_child.enqueue(0.0)).result(timeout=60)
    await gone(child)


@pytest.mark.parametrize("how", ["exit", "raise"])
async def test_a_process_that_ends_charges_its_job_and_no_other(crew: Crew, how: str) -> None:
    await crew.started("-c", "2")
    bad = await crew.tasks.apart.enqueue(how)
    fine = [await crew.tasks.looks.enqueue() for _ in range(3)]
    for job in fine:
        await job.result(timeout=60)
        assert (await crew.header(job)).crashes == 0
    await crew.all_in("done", "dead")
    assert (await crew.header(bad)).crashes == (3 if how == "exit" else 0)


PROGRAM = """
import asyncio, os
from penstock import Penstock, current_job

app = Penstock({name!r}, url={url!r})

@app.task(executor="process", retries=0)
def apart(n: int) -> list[int]:
    return [n, os.getpid(), current_job().attempt]

@app.task(executor="process")
async def apart_too(n: int) -> int:
    await asyncio.sleep(0)
    return n

async def main() -> None:
    async with app:
        job, other = await apart.enqueue(7), await apart_too.enqueue(8)
        await app.run_until_idle()
        print(*await job.result(), await other.result(), os.getpid())

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_a_program_runs_its_own_tasks_in_processes(crew: Crew, url: str) -> None:
    file = crew.folder / "program.py"
    file.write_text(PROGRAM.format(name=crew.name, url=url))
    n, pid, attempt, other, parent = map(int, (await output_of(str(file))).split())
    assert (n, attempt, other) == (7, 1, 8)
    assert pid != parent
    await gone(pid)
