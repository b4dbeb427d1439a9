"""Programs that tests run as processes of their own: many clients at once, each with its own connections.

`python -m tests.engine.processes PROGRAM URL NAMESPACE HOW_MANY` forks that many children, lets them connect, releases
them all at once and prints what each found out, as a JSON list.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import astuple

from penstock.engine.engine import Engine, NewJob
from penstock.engine.record.record import pack
from penstock.model.header import Header
from penstock.model.schedule import ScheduleSpec, first, plan
from penstock.server.endpoint import Endpoint
from penstock.server.urls import parse

LIFE = 60_000
WANT = 50


def run(program: str, engine: Engine, url: str, how_many: int) -> list[dict[str, Any]]:
    """For the test: start a program under the engine's namespace and wait for what it found out."""
    command = [sys.executable, "-m", "tests.engine.processes", program, url, engine.keys.namespace, str(how_many)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr.decode()
    return list(json.loads(done.stdout))


def race(engine: Engine, number: int) -> dict[str, Any]:
    """Enqueue the id that everybody enqueues, and a job with the unique key that everybody wants."""
    header = Header(state="", task="tasks:run", nonce=f"n{number}")
    same = engine.enqueue([NewJob("same", header, f"{number}".encode())])
    unique = Header(state="", task="tasks:run", unique="u", nonce=f"n{number}")
    wanted = engine.enqueue([NewJob(f"mine-{number}", unique, b"")])
    return {"number": number, "same": astuple(same.sync()[0]), "unique": astuple(wanted.sync()[0])}


def work(engine: Engine, number: int) -> dict[str, Any]:
    """Lease and complete page by page until the line is empty."""
    worker, call, began = f"worker-{number}", 0, time.monotonic()
    ran: list[str] = []
    assert engine.register(worker, LIFE).sync() == "ok"
    while True:
        call += 1
        leased = engine.lease(worker, call, want=WANT, answered=call - 1).sync()
        if not leased.leases and not leased.again:
            return {"number": number, "ran": ran, "seconds": time.monotonic() - began}
        answers = engine.complete(worker, [(lease.id, call, b"result") for lease in leased.leases]).sync()
        assert answers == ["ok"] * len(leased.leases), answers
        ran += [lease.id for lease in leased.leases]


def declare(engine: Engine, number: int) -> dict[str, Any]:
    """Start as a node whose code has the schedules that everybody's has."""
    worker = f"worker-{number}"
    assert engine.register(worker, LIFE).sync() == "ok"
    specs = {f"cron-{i}": _hourly(i) for i in range(3)}
    now = engine.due_crons(0).sync().now
    begin = {schedule: first(schedule, spec, now) for schedule, spec in specs.items()}
    calls = [engine.set_cron(name, spec, begin[name], source="code", worker=worker) for name, spec in specs.items()]
    return {"number": number, "words": [call.sync() for call in calls]}


def _hourly(number: int) -> ScheduleSpec:
    header = Header(state="", task=f"tasks:run-{number}")
    of_jobs: dict[str, Any] = {"task": header.task, "queue": header.queue, "form": pack(header), "payload": b""}
    return ScheduleSpec("cron", f"{number} * * * *", "Europe/Berlin", 0, "latest", "skip", **of_jobs)


def ticks(engine: Engine, number: int) -> dict[str, Any]:
    """Try to do every tick that is due, for a second."""
    made, until = 0, time.monotonic() + 1
    while time.monotonic() < until:
        due = engine.due_crons().sync()
        for cron in due.crons:
            assert cron.spec is not None
            assert cron.standing is not None
            planned = plan(cron.id, cron.spec, cron.standing.next, due.now)
            made += engine.tick(cron.id, cron.spec, cron.standing.next, planned).sync()[1]
        time.sleep(0.01)
    return {"number": number, "made": made}


PROGRAMS: dict[str, Callable[[Engine, int], dict[str, Any]]] = {
    "race": race,
    "work": work,
    "declare": declare,
    "ticks": ticks,
}


def _main(program: str, url: str, namespace: str, how_many: str) -> None:
    endpoint = Endpoint(parse(url), slot_key=f"penstock:{{{namespace}}}:meta".encode())
    engine = Engine(endpoint, namespace)
    ready, gate = os.pipe(), os.pipe()
    outputs = [_child(PROGRAMS[program], engine, number, ready, gate) for number in range(int(how_many))]
    for _ in outputs:
        os.read(ready[0], 1)
    os.close(gate[1])
    print(json.dumps([json.loads(_all(output)) for output in outputs]))


def _child(
    program: Callable[[Engine, int], dict[str, Any]],
    engine: Engine,
    number: int,
    ready: tuple[int, int],
    gate: tuple[int, int],
) -> int:
    """Fork a child that says when it is connected and waits for the gate to close; where its answer can be read."""
    output, answer = os.pipe()
    if os.fork():
        os.close(answer)
        return output
    try:
        os.close(gate[1])
        engine.script_client.endpoint.client_sync().ping()
        os.write(ready[1], b".")
        os.read(gate[0], 1)
        with os.fdopen(answer, "w") as file:
            json.dump(program(engine, number), file)
        os._exit(0)
    except BaseException:  # noqa: BLE001  (a fork must not run on into what its parent does next)
        traceback.print_exc()
        os._exit(1)


def _all(output: int) -> bytes:
    with os.fdopen(output, "rb") as file:
        return file.read()


if __name__ == "__main__":
    _main(*sys.argv[1:])
