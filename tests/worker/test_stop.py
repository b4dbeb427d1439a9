"""Stopping, replacing and looking at workers."""

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from penstock.engine.read.views import Views
from tests.api.looks import eventually
from tests.proxy import proxied
from tests.servers import Server, free_port
from tests.worker.harness import Crew, crew_at, gone, tree


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


async def test_health_is_served_over_http_and_stacks_are_dumped_on_a_signal(crew: Crew) -> None:
    port = free_port()
    worker = await crew.started("--health-port", f"127.0.0.1:{port}")
    assert await asyncio.to_thread(_ask, port, "/livez") == 200
    await eventually(lambda: asyncio.to_thread(_is_ok, port), within=20)
    assert await asyncio.to_thread(_ask, port, "/nothing") == 404
    await crew.tasks.slow.enqueue(60.0)
    await crew.until_started(1)
    worker.send_signal(signal.SIGUSR2)
    await eventually(lambda: crew.log().count("tasks of process") >= 2, within=20)
    assert "Current thread" in crew.log()
    assert "tasks.py" in crew.log()
    worker.kill()


async def test_health_is_told_only_under_expected_host_names(crew: Crew) -> None:
    port = free_port()
    worker = await crew.started("--health-port", f"127.0.0.1:{port}", "--allowed-host", "Probe.internal")
    for host, status in (
        ("localhost", 200),
        (f"127.0.0.1:{port}", 200),
        ("10.1.2.3:8080", 200),  # as a kubelet asks
        ("[fd00::1]:8080", 200),
        ("probe.internal", 200),
        ("evil.example", 403),
        ("probe.internal.evil.example", 403),
    ):
        for path in ("/livez", "/metrics"):
            answer = await asyncio.to_thread(_raw, port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
            assert answer.startswith(f"HTTP/1.1 {status} "), host
            assert "X-Content-Type-Options: nosniff\r\n" in answer
    assert (await asyncio.to_thread(_raw, port, "GET /livez HTTP/1.0\r\n\r\n")).startswith("HTTP/1.1 200 ")
    twice = "GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert (await asyncio.to_thread(_raw, port, twice)).startswith("HTTP/1.1 403 ")
    worker.kill()


def _raw(port: int, request: str) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(request.encode())
        return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()


async def test_metrics_are_served_over_http_and_outlive_a_process(crew: Crew) -> None:
    port = free_port()
    worker = await crew.started("--health-port", f"127.0.0.1:{port}", "-p", "2", children=2)
    for number in range(20):
        await (await crew.tasks.quick.enqueue(number)).result(timeout=20)
    slow = await crew.tasks.slow.enqueue(60.0)
    (line,) = [one for one in await crew.until_started(21) if one.job == slow.id]
    await eventually(lambda: _metric(port, "penstock_worker_running") == 1, within=20)
    assert _metric(port, 'penstock_worker_run_seconds_bucket{le="+Inf"}') == 20
    os.kill(line.pid, signal.SIGKILL)
    await eventually(lambda: _metric(port, "penstock_worker_died_total") == 1, within=20)
    assert _metric(port, "penstock_worker_run_seconds_count") >= 20
    assert 0 < _metric(port, "penstock_worker_run_seconds_sum") < 60
    await eventually(lambda: _metric(port, "penstock_worker_processes") == 2, within=20)
    assert _metric(port, "penstock_worker_reached") == 1
    for name in ("wait", "run"):  # of the app as a whole, as `penstock serve` has them
        assert _metric(port, f'penstock_{name}_seconds_count{{queue="default"}}') >= 21
    assert _metric(port, 'penstock_transitions_total{queue="default",verb="complete"}') == 20
    assert _metric(port, 'penstock_queue_jobs{queue="default",state="done"}') == 20
    if promtool := shutil.which("promtool"):
        command = [promtool, "check", "metrics"]
        checked = await asyncio.to_thread(subprocess.run, command, input=_text(port), capture_output=True, check=False)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
    worker.kill()


def _metric(port: int, name: str) -> float:
    lines = dict(line.rsplit(" ", 1) for line in _text(port).decode().splitlines() if not line.startswith("#"))
    return float(lines[name])


def _text(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return bytes(answer.read())


def _is_ok(port: int) -> bool:
    return _ask(port, "/readyz") == 200


def _ask(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status)
    except HTTPError as error:
        return int(error.code)
    except URLError:
        return 0


async def test_workers_are_shown_with_what_they_run(crew: Crew, url: str) -> None:
    await crew.started("-c", "3")
    job = await crew.tasks.slow.enqueue(60.0)
    await crew.until_started(1)
    program = ("-m", "penstock.cli", "workers", "--namespace", crew.name, "--url", url)
    found = json.loads(await _said(*program, "-o", "json"))
    (row,) = found
    assert (row["slots"], row["version"], row["stalled"]) == (3, "0.1.0", None)
    assert [(run["job"], run["task"]) for run in row["runs"]] == [(job.id, "slow")]
    assert job.id in await _said(*program)


async def _said(*program: str) -> str:
    import sys

    process = await asyncio.create_subprocess_exec(sys.executable, *program, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return out.decode()


@pytest.mark.parametrize("task", ["slow", "endless"])
async def test_a_running_job_is_cancelled_at_once(crew: Crew, task: str) -> None:
    worker = await crew.started()
    job = await crew.app.find_task(task).using(timeout=None).enqueue(*([60.0] if task == "slow" else []))
    (line,) = await crew.until_started(1)
    assert await job.cancel() == "cancelling"
    began = await crew.server_time()
    await crew.all_in("cancelled", within=10)
    print(f"cancelled after {await crew.server_time() - began:.0f} ms")
    if task == "endless":
        await gone(line.pid)
    assert await crew.stop(worker) == 0


async def test_a_running_job_is_cancelled_with_the_next_renewal_if_no_message_comes(
    tmp_path: Path, single: Server
) -> None:
    with proxied(single.port) as proxy:
        async with crew_at(tmp_path, single.url, proxy.url) as crew:
            await crew.started()
            job = await crew.tasks.slow.enqueue(60.0)
            await crew.until_started(1)
            proxy.mute = True
            assert await job.cancel() == "cancelling"
            await crew.all_in("cancelled", within=15)


async def test_a_worker_whose_app_fails_at_the_start_says_so_and_ends(crew: Crew) -> None:
    text = (crew.folder / "tasks.py").read_text()
    (crew.folder / "tasks.py").write_text(
        text.replace('    yield "state"', '    raise RuntimeError("no database")\n    yield')
    )
    worker = crew.start()
    await eventually(lambda: worker.poll() is not None, within=30)
    assert worker.returncode == 1
    assert "no database" in crew.log()


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


async def test_a_spare_with_outdated_code_is_ended_without_an_error(crew: Crew) -> None:
    worker = await crew.started("--reload")
    await asyncio.sleep(1)  # until the files are watched; nothing says so
    file = crew.folder / "tasks.py"
    for _ in range(2):
        await eventually(lambda: len(tree(worker.pid)) == 2, within=30)  # a child and the spare
        before = crew.log().count("takes no more jobs")
        file.write_text(file.read_text() + "\n# changed\n")
        await eventually(partial(_said_more, crew, before), within=30)
        assert await (await crew.tasks.quick.enqueue(1)).result(timeout=30) == 1
    assert "SIGKILL" not in crew.log()
    assert await crew.stop(worker) == 0


def _said_more(crew: Crew, before: int) -> bool:
    return crew.log().count("takes no more jobs") > before


async def test_changed_code_is_loaded_and_code_that_is_broken_is_waited_for(crew: Crew) -> None:
    worker = await crew.started("--reload")
    file = crew.folder / "tasks.py"
    text = file.read_text()
    await asyncio.sleep(1)  # until the files are watched; nothing says so
    file.write_text("raise RuntimeError('half written')")
    await eventually(lambda: "half written" in crew.log(), within=30)
    file.write_text(text.replace("    return n", "    return n + 1", 1))
    job = await crew.tasks.quick.enqueue(1)
    await eventually(lambda: _knows(crew, 2), within=60)
    assert await job.result(timeout=30) in {1, 2}
    assert worker.poll() is None
    assert await crew.stop(worker) == 0


async def _knows(crew: Crew, answer: int) -> bool:
    return bool(await (await crew.tasks.quick.enqueue(1)).result(timeout=60) == answer)


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
    n, pid, attempt, other, parent = map(int, (await _said(str(file))).split())
    assert (n, attempt, other) == (7, 1, 8)
    assert pid != parent
    await gone(pid)


@pytest.mark.long
async def test_a_stalled_loop_is_shown_as_such(crew: Crew, url: str) -> None:
    await crew.started()
    await crew.tasks.hold_the_gil.enqueue(80.0)
    program = ("-m", "penstock.cli", "workers", "--namespace", crew.name, "--url", url, "-o", "json")

    async def stalled() -> bool:
        return json.loads(await _said(*program))[0]["stalled"] is not None

    await eventually(stalled, within=75)
    await crew.all_in("done", within=60)

    async def well() -> bool:
        return not await stalled()

    await eventually(well, within=20)


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
