"""A web service that takes jobs: three at once, three tries each, and neither a kill nor a restart loses one.

    pip install 'penstock[http]'
    python examples/web_service.py

It starts the service and two workers, posts jobs over HTTP, kills a worker in the middle of its jobs, then everything
there is, starts all of it again, and shows that each job was done, but for the one that always fails: after three tries
that is in the dead letter. Any language could post them; see docs/http.md.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import uvicorn

from penstock import Lane, Penstock

JOBS = 12
FOLDER = Path(os.environ.setdefault("WEB_SERVICE_FOLDER", tempfile.mkdtemp(prefix="web-service-")))
LEDGER = FOLDER / "ledger"
os.environ.setdefault("PENSTOCK_EMBEDDED_LINGER", "0.2")  # seconds that the engine outlives its last user

app = Penstock("web-service", url=os.environ.get("PENSTOCK_URL", f"embedded://{FOLDER}/data"))


@app.task(name="work", lane=Lane("work", limit=3), retries=2, backoff=["200ms"])
def work(name: str) -> str:
    """Something that takes a while."""
    note("start", name)
    if name == "bad":
        note("end", name)
        raise ValueError("it never works")
    time.sleep(0.4)
    note("end", name)
    return f"{name} is done"


def note(what: str, name: str) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(f"{time.time()} {what} {name} {os.getpid()}\n")


class Everything:
    """The service and two workers; the embedded engine comes and goes with them."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.processes = [start("serve", str(self.port)), start("work"), start("work")]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Again until the service is up."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Idempotency-Key": f"{path} {len(body or ())}"},
        )
        for _ in range(300):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                    return json.load(answer)
            except ConnectionError:
                time.sleep(0.1)
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionError):
                    raise
                time.sleep(0.1)
        raise TimeoutError("the service did not start")

    def kill(self, *which: int) -> None:
        """Without a word."""
        for process in [self.processes[number] for number in which]:
            process.send_signal(signal.SIGKILL)
            process.wait()
            note("kill", str(process.pid))


def start(*arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, __file__, *arguments])  # noqa: S603  (ourselves)


def main() -> None:
    LEDGER.touch()
    names = [f"job-{number}" for number in range(JOBS)] + ["bad"]
    before = Everything()
    try:
        made = before.ask("POST", "/api/v1/jobs", [{"task": "work", "args": [name]} for name in names])
        wait_for(2, "start")
        before.kill(1)  # in the middle of its jobs: they go back
        wait_for(5, "end")
    finally:
        before.kill(0, 2)  # and now everything
    time.sleep(1.5)  # the engine has ended, too
    after = Everything()
    try:
        found = [after.ask("GET", f"/api/v1/jobs/{job['id']}?wait=60") for job in made]
    finally:
        after.kill(0, 1, 2)
    states = [job["state"] for job in found]
    tries = next(job["attempt"] for job in found if job["state"] == "dead")
    print(f"{len(found)} jobs, {states.count('done')} done, {states.count('dead')} dead after {tries} tries")
    print(f"never more than {most_at_once()} at once")


def wait_for(many: int, what: str) -> None:
    for _ in range(600):
        if LEDGER.read_text().count(f" {what} ") >= many:
            return
        time.sleep(0.05)
    raise TimeoutError(f"no {many} lines of {what!r}")


def most_at_once() -> int:
    """What a killed process had begun ended with it."""
    running: dict[str, str] = {}
    most = 0
    for line in LEDGER.read_text().splitlines():
        _, what, name, pid = line.split()
        if what == "start":
            running[name] = pid
            most = max(most, len(running))
        elif what == "end":
            running.pop(name, None)
        else:
            running = {one: its for one, its in running.items() if its != name}
    return most


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", port]:
            uvicorn.run(app.asgi(), port=int(port), log_level="warning")
        case ["work"]:
            asyncio.run(app.worker(concurrency=3, lease="1s").run())
        case _:
            main()
