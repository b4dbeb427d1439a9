"""`penstock serve` as its users meet it."""

import socket
from pathlib import Path

import httpx
import pytest

from tests.conftest import namespace
from tests.http.harness import bearer
from tests.http.processes import serve
from tests.servers import Server, wait_for


def test_serve_answers_for_an_app_until_it_is_stopped(tmp_path: Path, single: Server) -> None:
    secret = {"PENSTOCK_TOKEN": "always-the-same"}
    with serve(tmp_path, single.url, namespace(), "tasks:app", **secret) as process:
        assert httpx.get(f"{process.url}/readyz").text == "ready\n"
        job = {"task": "add", "args": [1]}
        made = httpx.post(f"{process.url}/api/v1/jobs", json=job, headers=bearer("always-the-same"))
        assert made.status_code == 201
        assert "to this machine only" in process.output
        assert process.end() == 0


def test_serve_answers_for_a_namespace_without_its_code(tmp_path: Path, single: Server) -> None:
    where = ("--namespace", namespace(), "--url", single.url)
    with serve(tmp_path, single.url, "unused", *where, "--open") as process:
        assert httpx.get(f"{process.url}/api/v1/tasks").json()["items"] == []
        assert httpx.get(f"{process.url}/api/v1/queues").json()["items"] == []


def test_others_may_ask_only_with_credentials(tmp_path: Path, single: Server) -> None:
    with serve(tmp_path, single.url, namespace(), "tasks:app", "--host", "0.0.0.0") as refused:
        assert refused.process.wait(timeout=30) == 2
        assert "PENSTOCK_HTTP_TOKENS" in refused.output
    secret = {"PENSTOCK_HTTP_TOKENS": "viewer:look-at-it"}
    with serve(tmp_path, single.url, namespace(), "tasks:app", "--host", "0.0.0.0", **secret) as process:
        assert httpx.get(f"{process.url}/api/v1/queues").status_code == 401
        assert httpx.get(f"{process.url}/livez").status_code == 200
        assert httpx.get(f"{process.url}/api/v1/queues", headers=bearer("look-at-it")).status_code == 200
        assert "look-at-it" not in process.output


@pytest.mark.parametrize(
    "bad",
    [
        ["--token", "short"],
        ["--token", "Viewer:long-enough"],
        ["--user", "ann"],
        ["--trust-header", "X:boss"],
        ["--trust-header", "X-User"],
        ["--token-file", "/nowhere/tokens.toml"],
    ],
)
def test_poor_credentials_are_a_usage_error(tmp_path: Path, single: Server, bad: list[str]) -> None:
    with serve(tmp_path, single.url, namespace(), "tasks:app", *bad) as process:
        assert process.process.wait(timeout=30) == 2
        assert "Traceback" not in process.output


def test_a_port_in_use_is_a_failure_that_says_what_to_do(tmp_path: Path, single: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serve(tmp_path, single.url, namespace(), "tasks:app", "--port", str(port)) as process:
            assert process.process.wait(timeout=30) == 1
    assert process.output == f"Error: port {port} of 127.0.0.1 is in use: choose another with --port\n"


def test_a_host_that_is_not_of_this_machine_is_a_failure_that_names_it(tmp_path: Path, single: Server) -> None:
    there = ("--host", "192.0.2.1", "--token", "look-at-it")
    with serve(tmp_path, single.url, namespace(), "tasks:app", *there) as process:
        assert process.process.wait(timeout=30) == 1
    assert "192.0.2.1 cannot be listened on" in process.output
    assert "Traceback" not in process.output


def test_serve_listens_on_every_address_of_a_host_name(tmp_path: Path, single: Server) -> None:
    with serve(tmp_path, single.url, namespace(), "tasks:app", "--host", "localhost") as process:
        assert httpx.get(f"{process.url}/livez").status_code == 200
        assert process.end() == 0


def test_a_server_that_cannot_be_reached_is_said_at_the_start_and_served_all_the_same(tmp_path: Path) -> None:
    with serve(tmp_path, "redis://me:secret@127.0.0.1:1", namespace(), "tasks:app") as process:
        assert httpx.get(f"{process.url}/livez").status_code == 200
        wait_for(lambda: "cannot be reached" in process.output, timeout=30)
        assert httpx.get(f"{process.url}/readyz", timeout=30).status_code == 503
        assert process.end() == 0
        (line,) = [line for line in process.output.splitlines() if " warn " in line]
        assert "redis://me:***@127.0.0.1:1 cannot be reached" in line
        assert "answered with 503" in line
        assert "secret" not in process.output


def test_nothing_is_said_of_a_server_that_can_be_reached(tmp_path: Path, single: Server) -> None:
    with serve(tmp_path, single.url, namespace(), "tasks:app") as process:
        assert httpx.get(f"{process.url}/readyz").status_code == 200
        assert process.end() == 0
        assert "answered with 503" not in process.output
