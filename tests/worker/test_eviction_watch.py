"""A server that begins to evict keys while workers are open: they log each change once."""

import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.engine.transport import eviction_watch
from penstock.engine.transport.script_client import ScriptCall
from tests.app_helpers import eventually, own_app
from tests.conftest import namespace
from tests.servers import Server, free_port
from tests.worker.harness import Crew, crew_at

OFTEN = 0.02  #: seconds between two looks, instead of a minute
LEASE = "300ms"  #: of which each third is a renewal
# The command line, in a process that looks as often.
SUPERVISOR = (
    f"import penstock.engine.transport.eviction_watch as e; e.CHECK_INTERVAL = {OFTEN};"
    "from penstock.cli import main; main()"
)


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction_watch, "CHECK_INTERVAL", OFTEN)


def looks(server: Server) -> int:
    """How often the server was asked about itself."""
    with server.client() as client:
        answer: Any = client.execute_command("LATENCY HISTOGRAM", "info")
    return int(answer[b"info"][b"calls"]) if answer else 0


def set_policy(server: Server, policy: str) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", policy)


def lines_in(caplog: pytest.LogCaptureFixture, level: str) -> list[str]:
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [line for name, line in lines if name == level and "evicts" in line]


def _has_errors(caplog: pytest.LogCaptureFixture, count: int) -> bool:
    return len(lines_in(caplog, "ERROR")) >= count


async def several_more_looks(server: Server) -> None:
    before = looks(server)
    await eventually(lambda: looks(server) >= before + 3)


@pytest.mark.usefixtures("looks_often")
async def test_a_worker_in_a_program_logs_each_change_to_a_policy_that_evicts_once(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with own_app(own_server, namespace()) as app:

        @app.task
        async def double(number: int) -> int:
            return 2 * number

        async with app.worker(lease=LEASE):
            for count, policy in enumerate(("allkeys-lru", "volatile-ttl"), start=1):
                set_policy(own_server, policy)
                await eventually(partial(_has_errors, caplog, count))
                await several_more_looks(own_server)
                assert len(lines_in(caplog, "ERROR")) == count
                assert f"(maxmemory-policy {policy}), which loses jobs: set" in lines_in(caplog, "ERROR")[-1]
            assert lines_in(caplog, "WARNING") == []
            set_policy(own_server, "noeviction")
            await eventually(lambda: lines_in(caplog, "WARNING"))
            await several_more_looks(own_server)
            assert await (await double.enqueue(4)).result(timeout=5) == 8
    (line,) = lines_in(caplog, "WARNING")
    assert "evicts no keys any more" in line
    assert len(lines_in(caplog, "ERROR")) == 2


@pytest.mark.usefixtures("looks_often")
async def test_a_stream_logs_that_its_server_evicts(own_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    app = Penstock(namespace(), url=own_server.url, lease=LEASE)
    async with app, app.queue("mail").stream():
        set_policy(own_server, "allkeys-lru")
        await eventually(lambda: lines_in(caplog, "ERROR"))


@pytest.mark.usefixtures("looks_often")
async def test_a_worker_logs_nothing_of_a_policy_that_it_may_not_see(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with own_app(own_server, namespace()) as app, app.worker(lease=LEASE):
        with own_server.client() as client:
            client.execute_command("ACL SETUSER default -info")
            client.config_set("maxmemory-policy", "allkeys-lru")
            try:
                refused = await eventually(lambda: _refusals(client))
                await eventually(lambda: _refusals(client) >= refused + 2)
            finally:
                client.execute_command("ACL SETUSER default +@all")
                client.config_set("maxmemory-policy", "noeviction")
        assert lines_in(caplog, "ERROR") == []
        assert [record for record in caplog.records if "renewed" in record.getMessage()] == []


def _refusals(client: Any) -> int:
    """How often INFO was refused since the log of refusals was emptied; that log adds up what is alike."""
    entries = client.execute_command("ACL LOG")
    return sum(int(entry["count"]) for entry in entries if entry["object"] in {"info", b"info"})


class Renewals:
    """Counts the renewals that an app sends."""

    def __init__(self) -> None:
        self.count = 0

    def saw(self, call: ScriptCall[Any], answer: Any) -> None:
        self.count += call.script.name == "renew"

    async def after(self, verb: str) -> None:
        pass

    def after_sync(self, verb: str) -> None:
        pass


async def test_a_worker_does_not_read_the_policy_with_each_renewal(own_server: Server) -> None:
    async with own_app(own_server, namespace()) as app:
        renewals = app.client.engine.script_client.spy = Renewals()
        async with app.worker(lease="100ms"):
            await eventually(lambda: renewals.count >= 1)
            before = looks(own_server)
            await eventually(lambda: renewals.count >= 10)
            assert looks(own_server) == before


async def test_a_supervisor_logs_and_measures_that_its_server_evicts(tmp_path: Path, own_server: Server) -> None:
    async with crew_at(tmp_path, own_server.url) as crew:
        port = free_port()
        _start(crew, "--health-port", str(port))
        await eventually(crew.nodes, within=60)
        assert _metric(port) == 0
        set_policy(own_server, "allkeys-lfu")
        await eventually(lambda: _metric(port) == 1, within=20)
        await several_more_looks(own_server)
        set_policy(own_server, "noeviction")
        await eventually(lambda: _metric(port) == 0, within=20)
        assert crew.log().count("evicts keys when it is full (maxmemory-policy allkeys-lfu)") == 1
        assert crew.log().count("evicts no keys any more") == 1


def _start(crew: Crew, *options: str) -> None:
    command = [sys.executable, "-c", SUPERVISOR, "worker", "tasks:app", "--lease", LEASE, *options]
    with (crew.folder / "log-0").open("ab") as log:
        crew.workers.append(
            subprocess.Popen(command, cwd=crew.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        )


def _metric(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith("penstock_worker_server_evicts ")]
    return float(value)
