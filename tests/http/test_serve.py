"""`penstock serve` as its users meet it."""

from pathlib import Path

import httpx
import pytest

from tests.conftest import namespace
from tests.http.harness import bearer
from tests.http.processes import serve
from tests.servers import Server


def test_it_serves_an_app_until_it_is_told_to_stop(tmp_path: Path, single: Server) -> None:
    with serve(tmp_path, single.url, namespace(), "tasks:app") as process:
        assert httpx.get(f"{process.url}/readyz").text == "ready\n"
        made = httpx.post(f"{process.url}/api/v1/jobs", json={"task": "add", "args": [1]})
        assert made.status_code == 201
        assert "this machine only" in process.said
        assert process.end() == 0


def test_it_serves_a_namespace_without_its_code(tmp_path: Path, single: Server) -> None:
    with serve(tmp_path, single.url, "unused", "--namespace", namespace(), "--url", single.url) as process:
        assert httpx.get(f"{process.url}/api/v1/tasks").json()["items"] == []
        assert httpx.get(f"{process.url}/api/v1/queues").json()["items"] == []


def test_others_may_ask_only_with_credentials(tmp_path: Path, single: Server) -> None:
    with serve(tmp_path, single.url, namespace(), "tasks:app", "--host", "0.0.0.0") as refused:
        assert refused.process.wait(timeout=30) == 2
        assert "PENSTOCK_HTTP_TOKENS" in refused.said
    secret = {"PENSTOCK_HTTP_TOKENS": "viewer:look-at-it"}
    with serve(tmp_path, single.url, namespace(), "tasks:app", "--host", "0.0.0.0", **secret) as process:
        assert httpx.get(f"{process.url}/api/v1/queues").status_code == 401
        assert httpx.get(f"{process.url}/livez").status_code == 200
        assert httpx.get(f"{process.url}/api/v1/queues", headers=bearer("look-at-it")).status_code == 200
        assert "look-at-it" not in process.said


@pytest.mark.parametrize("bad", [["--token", "short"], ["--user", "ann"], ["--trust-header", "X:boss"]])
def test_poor_credentials_are_a_usage_error(tmp_path: Path, single: Server, bad: list[str]) -> None:
    with serve(tmp_path, single.url, namespace(), "tasks:app", *bad) as process:
        assert process.process.wait(timeout=30) == 2
