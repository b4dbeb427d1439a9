"""`penstock doctor`: what it reports, what it mends, and what it says when the server fails under it."""

from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from penstock.cli import doctor
from tests.cli.shell import Shell
from tests.cli.test_job_and_queue_commands import busy
from tests.servers import Server

__all__ = ["busy"]


def test_doctor_is_well_until_something_is_broken(shell: Shell, single: Server) -> None:
    subject = "a payload of its own, since it is long" * 10
    job_id = shell.json("enqueue", "send", f'[7, "{subject}"]')["id"]
    report = shell.json("doctor")
    assert (report["healthy"], report["jobs"], report["findings"]) == (True, 1, [])
    with single.client() as client:
        client.hdel(f"penstock:{{{shell.namespace}}}:payloads", job_id)
    out, _ = shell.run("doctor", code=8)
    assert "payload missing" in out
    assert [row["subject"] for row in shell.json("doctor", code=8)["findings"]] == [job_id]


def test_doctor_names_what_is_wrong_and_mends_it(shell: Shell, single: Server, busy: dict[str, str]) -> None:
    report = shell.json("doctor")
    assert report["healthy"]
    assert report["settings"]["eviction"] == "noeviction"
    single.client().delete(f"penstock:{{{shell.namespace}}}:dead")
    report = shell.json("doctor", code=8)
    assert {"keys", "place"} <= {finding["rule"] for finding in report["findings"]}
    out, _ = shell.run("doctor", code=8)
    assert "penstock doctor --fix" in out
    assert "--yes" in shell.run("doctor", "--fix", code=2)[1]
    repaired = shell.json("doctor", "--fix", "--yes")
    assert repaired["healthy"]
    assert repaired["fixed"]
    assert "clean" in shell.run("doctor")[0]


def test_doctor_says_that_there_is_no_connection_when_the_server_fails_under_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise RedisConnectionError("Connection closed by server.")

    monkeypatch.setattr(doctor, "examine", fail)
    _, err = shell.run("doctor", code=3)
    assert "Connection closed by server." in err
