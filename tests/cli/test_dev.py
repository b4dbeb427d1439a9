"""`penstock dev` and `penstock engine`: processes that stay until a signal comes."""

import json
import signal
import subprocess
import urllib.request
from pathlib import Path

import redis

from tests.cli.shell import Shell
from tests.servers import wait_for

LONG = 90.0  # seconds: several processes start


def _lines(process: "subprocess.Popen[str]", words: str) -> str:
    """The first line of its log that has these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it ended without {words!r}")


def _ended(process: "subprocess.Popen[str]") -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LONG)
    return process.returncode


def test_dev_runs_jobs_and_serves_http_until_it_is_told_to_stop(shell: Shell) -> None:
    job_id = shell.json("enqueue", "send", "[7]")["id"]
    process = shell.start("dev", "--port", "0")
    try:
        served = _lines(process, "curl  -H")
        _, header, address = served.replace("'", "\n").split("\n")[:3]
        wait_for(lambda: shell.json("job", "show", job_id)["state"] == "done", timeout=LONG)
        url = address.strip().replace("/queues", f"/jobs/{job_id}")
        request = urllib.request.Request(url, headers=dict([header.split(": ")]))
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["result"] == "7:hi"
        assert _ended(process) == 0
    finally:
        process.kill()
        process.communicate()


def test_dev_asks_for_no_token_with_open(shell: Shell) -> None:
    process = shell.start("dev", "--port", "0", "--open")
    try:
        served = _lines(process, "serves http://")
        address = next(word for word in served.split() if word.startswith("http://"))
        with urllib.request.urlopen(f"{address}/api/v1/me") as answer:
            assert json.load(answer)["role"] == "admin"
        assert _ended(process) == 0
    finally:
        process.kill()
        process.communicate()


def test_dev_ends_when_one_of_its_processes_does(shell: Shell) -> None:
    _, err = shell.run("dev", "nowhere:app", "--port", "0", code=4)
    assert "there is no module 'nowhere'" in err


def test_engine_keeps_the_embedded_server_until_it_is_told_to_stop(shell: Shell, tmp_path: Path) -> None:
    process = shell.start("engine", "--url", f"embedded://{tmp_path}/data", "-o", "json")
    try:
        assert process.stdout is not None
        printed = json.loads(process.stdout.readline())
        assert printed["data"] == f"{tmp_path}/data"
        client = redis.Redis(unix_socket_path=printed["url"].removeprefix("unix://"))
        number = client.info("server")["process_id"]
        client.shutdown(nosave=True)
        wait_for(lambda: client.info("server")["process_id"] != number, timeout=LONG, ignore=(redis.RedisError,))
        assert _ended(process) == 0
    finally:
        process.kill()
        process.communicate()
    assert "embedded://" in shell.run("engine", code=2)[1]
