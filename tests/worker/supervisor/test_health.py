"""What a supervisor shows of its workers: health and metrics over HTTP, stacks on a signal, running jobs."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from urllib.error import HTTPError, URLError

import pytest

from tests.app_helpers import eventually
from tests.servers import free_port
from tests.worker.harness import Crew, output_of


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
    (line,) = [line for line in await crew.until_started(21) if line.job == slow.id]
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
    rows = json.loads(await output_of(*program, "-o", "json"))
    (row,) = rows
    assert (row["slots"], row["version"], row["stalled"]) == (3, "0.1.0", None)
    assert [(run["job"], run["task"]) for run in row["runs"]] == [(job.id, "slow")]
    assert job.id in await output_of(*program)


@pytest.mark.long
async def test_a_stalled_loop_is_shown_as_such(crew: Crew, url: str) -> None:
    await crew.started()
    await crew.tasks.hold_the_gil.enqueue(80.0)
    program = ("-m", "penstock.cli", "workers", "--namespace", crew.name, "--url", url, "-o", "json")

    async def stalled() -> bool:
        return json.loads(await output_of(*program))[0]["stalled"] is not None

    await eventually(stalled, within=75)
    await crew.all_in("done", within=60)

    async def well() -> bool:
        return not await stalled()

    await eventually(well, within=20)
