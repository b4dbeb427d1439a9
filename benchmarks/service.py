"""`python -m benchmarks.service`: posting jobs over HTTP, beside a route that only answers, and beside `enqueue_many`.

Needs wrk. All on loopback, in turns, because a machine is not the same from one minute to the next.
"""

import asyncio
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks import server
from penstock import Penstock
from penstock.http.connections import Connections, Room, ServiceProtocol

ROUNDS: Final = 5
SECONDS: Final = 3
CONNECTIONS: Final = 32
_SINGLE: Final = '{"task":"add","args":[1],"kwargs":{"y":2}}'
_TOKEN: Final = "of-the-benchmark"
_ANSWER: Final = {"id": "mwiqz6qvcecaaae79dcfa1", "state": "ready", "created": True}


def _app(url: str) -> Penstock:
    app = Penstock("bench-service", url=url)

    @app.task(name="add", queue="sums")
    async def add(x: int, y: int = 0) -> int:
        return x + y

    return app


async def _only_answer(request: Request) -> JSONResponse:
    await request.body()
    return JSONResponse(_ANSWER, 201)


def _serve(kind: str, port: int, url: str) -> None:
    bare = Starlette(routes=[Route("/api/v1/jobs", _only_answer, methods=["POST"])])
    if kind == "bare":
        uvicorn.run(bare, port=port, log_level="warning", access_log=False)
    else:
        service = _app(url).asgi(tokens={_TOKEN: "admin"})
        protocol: Any = partial(ServiceProtocol, connections=Connections(Room()))
        uvicorn.run(service, port=port, log_level="warning", access_log=False, http=protocol)


def _start(kind: str, url: str) -> "tuple[subprocess.Popen[bytes], int]":
    port = server._free_port()  # noqa: SLF001  (its neighbour)
    return subprocess.Popen([sys.executable, "-m", "benchmarks.service", kind, str(port), url]), port


def _wait_for(port: int) -> None:
    """Until somebody listens there, a minute at most."""
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"nobody listens on port {port}")


def _wrk(script: Path, port: int, connections: int) -> tuple[float, int]:
    """Requests per second, and how many were answered; all of them well."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{SECONDS}", "-s", script, f"http://127.0.0.1:{port}/api/v1/jobs"]
    output = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in output:
        raise RuntimeError(output)
    rate, total = re.search(r"Requests/sec:\s+([\d.]+)", output), re.search(r"(\d+) requests in", output)
    assert rate is not None
    assert total is not None
    return float(rate[1]), int(total[1])


def _script(folder: Path, name: str, body: str) -> Path:
    file = folder / f"{name}.lua"
    headers = f"wrk.headers['Content-Type']='application/json' wrk.headers['Authorization']='Bearer {_TOKEN}'"
    file.write_text(f"wrk.method='POST' {headers} wrk.body=[==[{body}]==]\n")
    return file


async def _enqueue_many(url: str) -> float:
    """Jobs per second, a thousand at a time."""
    async with _app(url) as app:
        started, enqueued = time.perf_counter(), 0
        while time.perf_counter() - started < SECONDS:
            await app.enqueue_many(app.tasks["add"].call(number) for number in range(1_000))
            enqueued += 1_000
        return enqueued / (time.perf_counter() - started)


async def _stored(url: str) -> int:
    async with _app(url) as app:
        return sum((await app.client.views.counts()).get("sums", {}).values())


def _measure(folder: Path, url: str, bare: int, ours: int) -> None:
    single = _script(folder, "single", _SINGLE)
    array = _script(folder, "array", "[" + ",".join([_SINGLE] * 1_000) + "]")
    singles, arrays, answered = [], [], 0
    for number in range(ROUNDS):
        beside, _ = _wrk(single, bare, CONNECTIONS)
        rate, total = _wrk(single, ours, CONNECTIONS)
        answered += total
        singles.append(rate / beside)
        print(f"{number + 1}: {beside:,.0f}/s are only answered, {rate:,.0f}/s are stored: {rate / beside:.0%}")
    stored = asyncio.run(_stored(url))
    print(f"{answered:,} were answered and {stored:,} stored: wrk does not wait for the last answers")
    assert stored >= answered, "a job was answered, but is not stored"
    for number in range(ROUNDS):
        beside = asyncio.run(_enqueue_many(url))
        rate = _wrk(array, ours, 4)[0] * 1_000
        arrays.append(rate / beside)
        print(f"{number + 1}: enqueue_many {beside:,.0f}/s, arrays of 1,000 {rate:,.0f}/s: {rate / beside:.0%}")
    print(f"median: single jobs {statistics.median(singles):.0%}, arrays {statistics.median(arrays):.0%}")


def main() -> None:
    if shutil.which("wrk") is None:
        sys.exit("wrk is needed: apt install wrk")
    with server.running() as (fresh, _), tempfile.TemporaryDirectory() as folder:
        processes = [_start("bare", fresh.url), _start("ours", fresh.url)]
        try:
            for _process, port in processes:
                _wait_for(port)
            _measure(Path(folder), fresh.url, processes[0][1], processes[1][1])
        finally:
            for process, _port in processes:
                process.kill()
                process.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main()
