"""Sealed on real servers and in real processes: nothing readable on disk or on the wire, and keys that change."""

import asyncio
import base64
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import Job, JobFailed, Penstock
from penstock.engine.read.sealed_keys import count_keys
from penstock.engine.repair.audit import audit
from tests.app_helpers import eventually
from tests.conftest import namespace
from tests.servers import Server, running

CANARY = "canary-4111-1111"
KEYS = {"november": os.urandom(32), "may": os.urandom(32)}

PROGRAM = """
import asyncio, logging, os
from penstock import Bury, Penstock, Retry, current_job
from penstock.contrib.encrypt import Compressed, Sealed

CODEC = [Compressed(over=200), Sealed(errors=True, logs=True)] if os.environ.get("PENSTOCK_KEYS") else None
app = Penstock(os.environ["NAMESPACE"], codec=CODEC)


def note(what):
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(what + "\\n")


@app.task
async def echo(text: str, times: int = 1) -> str:
    return text * times


@app.task
def in_thread(text: str) -> str:
    print(text, flush=True)
    current_job().log(f"logged {text}")
    logging.getLogger("shop").warning("warned of %s", text)
    return text


@app.task(executor="process", retries=0)
def apart(text: str) -> str:
    job = current_job()
    job.progress_sync(1, 2, text)
    logging.getLogger("shop").warning("warned apart of %s", text)
    if text.endswith("!"):
        raise LookupError(f"apart: {text}")
    return text


@app.task(retries=2, backoff=[0.01])
async def fail(text: str) -> None:
    await current_job().progress(1, None, text)
    raise LookupError(f"no {text}")


@app.task
async def bury(text: str) -> None:
    raise Bury(f"buried {text}")


@app.task(retries=1)
async def again(text: str) -> str:
    if current_job().attempt == 1:
        raise Retry("10ms") from ValueError(text)
    return text


@app.task(unique=True, retries=0)
async def odd(text: str) -> object:
    return object()


@app.task(name="load")
async def load(n: int, text: str) -> list:
    await asyncio.sleep(0.001)
    note(str(n))
    return [n, text]


@app.every("1h", id="hourly", args=["CANARY"])
@app.task
async def hourly(text: str) -> str:
    return text
""".replace("CANARY", CANARY)


def _variable(*names: str) -> str:
    return ",".join(f"{name}:{base64.b64encode(KEYS[name]).decode()}" for name in names)


class Fleet:
    """Worker processes of one app, each with keys of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self.name = folder, url, namespace()
        self.ledger = folder / "ledger"
        (folder / "tasks.py").write_text(PROGRAM)
        self.workers: list[subprocess.Popen[bytes]] = []

    def app(self, *keys: str) -> Penstock:
        """The same app here."""
        environment = {"NAMESPACE": self.name, "LEDGER": str(self.ledger), "PENSTOCK_KEYS": _variable(*keys)}
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            module: dict[str, Any] = {"__name__": "tasks"}
            exec(PROGRAM, module)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        app: Penstock = module["app"]
        app.settings = Penstock(self.name, url=self.url).settings
        return app

    def start(self, *keys: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"log-{len(self.workers)}").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli", "worker", "tasks:app", "--lease", "2s", "-c", "20"],
                cwd=self.folder,
                env=os.environ
                | {
                    "PENSTOCK_KEYS": _variable(*keys),
                    "PENSTOCK_URL": self.url,
                    "NAMESPACE": self.name,
                    "LEDGER": str(self.ledger),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.workers.append(worker)
        return worker

    def stop(self, worker: "subprocess.Popen[bytes]") -> None:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)

    def has_run(self, number: int) -> bool:
        """Whether at least so many jobs of `load` have run."""
        return self.ledger.exists() and len(self.ledger.read_text().split()) >= number

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


@pytest.fixture
def aof_server() -> Iterator[Server]:
    with running(Server("--appendonly", "yes", "--appendfsync", "everysec", "--aof-use-rdb-preamble", "no")) as server:
        yield server


@pytest.fixture
def fleet(tmp_path: Path, aof_server: Server) -> Iterator[Fleet]:
    made = Fleet(tmp_path, aof_server.url)
    yield made
    made.end()


@contextmanager
def monitored(server: Server) -> Iterator[bytearray]:
    """All that the server is told meanwhile, and what its scripts call."""
    seen = bytearray()
    with socket.create_connection(("127.0.0.1", server.port)) as monitor:
        monitor.sendall(b"MONITOR\r\n")
        assert monitor.recv(5) == b"+OK\r\n"

        def read() -> None:
            while part := monitor.recv(2**16):
                seen.extend(part)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield seen
            with server.client() as client:
                client.echo("the end of what is monitored")
            _wait_for(lambda: b"the end of what is monitored" in seen)
        finally:
            monitor.shutdown(socket.SHUT_RDWR)
            reader.join()


def _wait_for(condition: Any) -> None:
    from tests.servers import wait_for

    wait_for(condition)


def _on_disk(server: Server) -> bytes:
    """The whole AOF, and a snapshot of the data."""
    with server.client() as client:
        client.save()
        client.config_set("appendfsync", "always")
        client.set("written", "now")
    return b"".join(file.read_bytes() for file in server.folder.rglob("*") if file.is_file() and file.name != "log")


async def _do_everything(app: Penstock) -> None:
    """Jobs that end in every way, each with the canary; and all that can be asked about them."""
    text, tasks = CANARY, {name.partition(":")[2] or name: task for name, task in app.tasks.items()}
    jobs = {
        "echo": await tasks["echo"].enqueue(text),
        "long": await tasks["echo"].enqueue(text, times=2_000),
        "in_thread": await tasks["in_thread"].enqueue(text),
        "apart": await tasks["apart"].enqueue(text),
        "again": await tasks["again"].enqueue(text),
        "later": await tasks["echo"].using(delay="200ms", timeout="5s", tags=["t"]).enqueue(text),
        "cancelled": await tasks["echo"].using(delay="1h").enqueue(text),
    }
    failing = {
        "fail": await tasks["fail"].enqueue(text),
        "bury": await tasks["bury"].enqueue(text),
        "apart!": await tasks["apart"].enqueue(text + "!"),
        "odd": await tasks["odd"].enqueue(text),
    }
    await jobs.pop("cancelled").cancel()
    assert {name: await job.result(timeout=60) for name, job in jobs.items()} == {
        name: text * (2_000 if name == "long" else 1) for name in jobs
    }
    for name, job in failing.items():
        with pytest.raises(JobFailed, match="odd" if False else "object" if name == "odd" else CANARY):
            await job.result(timeout=60)
    assert await app.map(tasks["echo"], [text, text]) == [text, text]
    schedule = await app.schedule("hourly").run()
    assert await schedule.result(timeout=60) == text
    await failing["bury"].retry()
    await app.retry_job(failing["fail"].id, {"text": text + "2"})
    await eventually(lambda: _is_dead(failing["fail"]), within=30)
    await eventually(lambda: _is_dead(failing["bury"]), within=30)
    logged = {line.text for line in await eventually(jobs["in_thread"].log, within=10)}
    assert {f"logged {text}", f"warned of {text}"} <= logged
    assert [group.count for group in await app.dead_groups()]


async def _is_dead(job: Job[Any]) -> bool:
    return (await job.status()).state == "dead"


async def test_nothing_readable_reaches_the_disk_or_the_wire(fleet: Fleet, aof_server: Server) -> None:
    app = fleet.app("november")
    with monitored(aof_server) as seen:
        fleet.start("november")
        async with app:
            await _do_everything(app)
            assert await audit(app.client.engine) == []
    disk, wire = _on_disk(aof_server), bytes(seen)
    for words in (CANARY, CANARY[7:], CANARY.encode().hex(), base64.b64encode(CANARY.encode()[:9]).decode()):
        assert words.encode() not in disk, words
        assert words.encode() not in wire, words
    for name in (b"LookupError", b"ValueError", b"Traceback", b"tasks.py"):
        assert name not in disk
        assert name not in wire
    for name in (b"tasks:echo", b"in_thread", b"hourly"):
        assert name in disk  # tasks, schedules, queues and tags stay readable
        assert name in wire


async def test_the_same_jobs_without_a_codec_are_readable_in_both_places(fleet: Fleet, aof_server: Server) -> None:
    """Or the test above would find nothing whatever was stored."""
    app = fleet.app()
    with monitored(aof_server) as seen:
        fleet.start()
        async with app:
            await _do_everything(app)
    for place in (_on_disk(aof_server), bytes(seen)):
        for words in (f"no {CANARY}", f"buried {CANARY}", f"logged {CANARY}", f"apart: {CANARY}", "Traceback"):
            assert words.encode() in place, words


@pytest.mark.timeout(300)
async def test_a_key_is_replaced_under_load_and_nothing_is_lost(fleet: Fleet) -> None:
    """As the documentation says: all get the new key, then it comes first, then the old one goes."""
    steps = [("may",), ("may", "november"), ("november", "may")]
    workers = [fleet.start(*steps[0]), fleet.start(*steps[0])]
    sent: dict[int, Job[Any]] = {}
    over = asyncio.Event()

    async def produce(app: Penstock, until: asyncio.Event) -> None:
        while not until.is_set():
            numbers = range(len(sent), len(sent) + 20)
            jobs = await app.enqueue_many([app.tasks["load"].call(n, CANARY) for n in numbers])
            sent.update(zip(numbers, jobs, strict=True))
            await asyncio.sleep(0.02)

    for before, after in itertools.pairwise(steps):
        async with fleet.app(*before) as app:
            until = asyncio.Event()
            producing = asyncio.create_task(produce(app, until))
            await eventually(partial(fleet.has_run, len(sent) + 60), within=60)
            for n, worker in enumerate(workers):  # while it produces with the keys of the step before
                fresh = fleet.start(*after)
                await asyncio.to_thread(fleet.stop, worker)
                workers[n] = fresh
            until.set()
            await producing
    async with fleet.app(*steps[-1]) as app:
        producing = asyncio.create_task(produce(app, over))
        await eventually(partial(fleet.has_run, len(sent) + 60), within=60)
        over.set()
        await producing
        task = app.tasks["load"]
        results = await asyncio.gather(*(task.job(job.id).result(timeout=60) for job in sent.values()))
        assert results == [[n, CANARY] for n in sent]
        assert sorted(map(int, fleet.ledger.read_text().split())) == sorted(sent)  # each ran, and ran once
        assert await audit(app.client.engine) == []
        assert (await app.client.views.counts())["default"].get("dead", 0) == 0
        assert (await count_keys(app.client.engine))["may"] > 0
        # Results are kept for an hour; when they are gone, nothing needs the old key any more.
        ids = [job.id for job in sent.values()]
        for start in range(0, len(ids), 100):
            await app.client.engine.discard(ids[start : start + 100])
        await app.schedule("hourly").remove()
        assert set(await count_keys(app.client.engine)) <= {"november"}


async def test_workers_without_the_new_key_leave_its_jobs_to_those_that_have_it(fleet: Fleet) -> None:
    """Producers were changed too early, or a worker too late: the jobs come late, and none is lost."""
    old, new = fleet.start("may"), fleet.start("november", "may")
    async with fleet.app("november", "may") as app, fleet.app("may") as before:
        task = app.tasks["load"]
        jobs = [
            *await app.enqueue_many([task.call(n, CANARY) for n in range(100)]),
            *await before.enqueue_many([before.tasks["load"].call(n, CANARY) for n in range(100, 200)]),
        ]
        results = await asyncio.gather(*(task.job(job.id).result(timeout=100) for job in jobs))
        assert results == [[n, CANARY] for n in range(200)]
        assert len(fleet.ledger.read_text().split()) == 200
        assert await audit(app.client.engine) == []
    for worker in (old, new):
        assert worker.poll() is None


async def test_the_command_line_opens_what_the_app_has_the_key_of_and_says_what_is_sealed(fleet: Fleet) -> None:
    def shown(*arguments: str, keys: tuple[str, ...] = ("november",)) -> str:
        environment = {"PENSTOCK_URL": fleet.url, "NAMESPACE": fleet.name, "LEDGER": str(fleet.ledger)}
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli", *arguments],
            cwd=fleet.folder,
            env=os.environ | environment | {"PENSTOCK_KEYS": _variable(*keys)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout + done.stderr

    async with fleet.app("november") as app:
        worker = fleet.start("november")
        done, failed = await app.tasks["tasks:echo"].enqueue(CANARY), await app.tasks["tasks:bury"].enqueue(CANARY)
        await done.result(timeout=60)
        await eventually(partial(_is_dead, failed), within=30)
        fleet.stop(worker)
        for id_, words in ((done.id, f'"{CANARY}"'), (failed.id, f"buried {CANARY}")):
            assert words in await asyncio.to_thread(shown, "job", "show", id_, "--app", "tasks:app")
            hidden = await asyncio.to_thread(shown, "job", "show", id_, "--namespace", fleet.name)
            assert CANARY not in hidden
            assert "(sealed, november)" in hidden
        report = await asyncio.to_thread(shown, "doctor", "--app", "tasks:app")
        assert re.search(r"sealed with +november \(\d+ values\)", report), report
        other = await asyncio.to_thread(partial(shown, "doctor", "--app", "tasks:app", keys=("may",)))
        assert "this app does not have it" in other
