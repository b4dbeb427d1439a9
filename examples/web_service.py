"""A web service that takes jobs: three at once, three tries each, and neither a kill nor a restart loses one.

    pip install 'penstock[http]'
    python examples/web_service.py

What was wanted: `POST` a job from any language. At most so many run at once; what is stuck goes back; a job that fails
is tried three times; and a restart, of anything, loses nothing.

How Penstock does it: `app.asgi()` is the service, a `Lane` the limit, `retries` the tries. A job that was taken is
leased: if its worker dies, it goes back by itself. Here a service and two workers get jobs over HTTP; one worker is
killed in the middle, then everything there is, the engine too, and all of it is started again. See docs/http.md.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from penstock import Lane, Penstock

FOLDER = Path(os.environ.get("WEB_SERVICE_FOLDER") or tempfile.mkdtemp(prefix="web-service-"))
os.environ["WEB_SERVICE_FOLDER"] = str(FOLDER)  # for its other processes
TOKEN = os.environ.setdefault("WEB_SERVICE_TOKEN", os.urandom(16).hex())  # whoever has it may store jobs
os.environ.setdefault("PENSTOCK_EMBEDDED_LINGER", "0.2")  # seconds that the engine outlives its last user

app = Penstock("web-service", url=f"embedded://{FOLDER}/data")


@app.task(name="work", lane=Lane("work", limit=3), retries=2, backoff=["200ms"])
def work(name: str) -> str:
    time.sleep(0.4)
    if name == "bad":
        raise ValueError("it never works")
    return f"{name} is done"


@contextmanager
def everything(door: socket.socket) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """A service behind this door and two workers; at the end of the block all of them are killed, without a word."""
    itself, number = [sys.executable, __file__], door.fileno()
    roles = [["serve", str(number)], ["work"], ["work"]]
    processes = [subprocess.Popen([*itself, *role], pass_fds=[number]) for role in roles]  # noqa: S603  (ourselves)
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def ask(door: socket.socket, path: str, body: Any = None) -> Any:
    """Who comes before the service is up waits at the door."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(f"http://127.0.0.1:{door.getsockname()[1]}/api/v1/jobs{path}", data, headers)
    with urllib.request.urlopen(request, timeout=90) as answer:  # noqa: S310
        return json.load(answer)


async def most_at_once() -> int:
    running, most = set[str](), 0
    async for event in app.events(since="1h", kinds=["lease", "complete", "retry", "bury", "reap"]).kept():
        running = running | {event.job} if event.kind == "lease" else running - {event.job}
        most = max(most, len(running))
    return most


def main() -> None:
    names = [f"job-{number}" for number in range(12)] + ["bad"]
    with socket.create_server(("127.0.0.1", 0)) as door:
        with everything(door) as (_, worker, _):
            jobs = ask(door, "", [{"task": "work", "args": [name]} for name in names])
            ask(door, f"/{jobs[0]['id']}?wait=60")
            worker.kill()
            print(f"{len(jobs)} jobs were taken; a worker was killed in the middle of its own", flush=True)
            ask(door, f"/{jobs[4]['id']}?wait=60")
        time.sleep(1.5)  # the engine has ended, too
        print("everything was killed, and is started again", flush=True)
        with everything(door):
            ended = [ask(door, f"/{job['id']}?wait=60") for job in jobs]
            print(f"never more than {asyncio.run(most_at_once())} at once")
    dead = [job for job in ended if job["state"] == "dead"]
    print(f"{len(ended) - len(dead)} are done, {len(dead)} is dead after {dead[0]['attempt']} tries")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", number]:
            service = uvicorn.Server(uvicorn.Config(app.asgi(tokens={TOKEN: "operator"}), log_level="warning"))
            service.run([socket.socket(fileno=int(number))])
        case ["work"]:
            asyncio.run(app.worker(concurrency=3, lease="1s").run())
        case _:
            main()
