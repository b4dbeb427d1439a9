"""Real worker processes with an application of their own, and a ledger of what their jobs really did."""

import asyncio
import contextlib
import importlib.util
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from penstock import Penstock
from penstock.engine.engine import Engine
from penstock.engine.read.views import Event, Node
from penstock.engine.repair.audit import audit
from tests.app_helpers import eventually
from tests.conftest import namespace
from tests.engine.factories import raw

TASKS = Path(__file__).with_name("tasks.txt")
LEASE = 2.0  # seconds
MAX_AUDITS = 20  # a moment apart; one of them has to find nothing


class Line(NamedTuple):
    """One effect of a job, in the ledger."""

    what: str
    job: str
    pid: int
    at: float


class Crew:
    """An application in a directory, and the workers that were started for it."""

    def __init__(self, folder: Path, url: str, worker_url: str | None = None) -> None:
        self.folder = folder
        self.ledger = folder / "ledger"
        self.name = namespace()
        text = TASKS.read_text()
        (folder / "tasks.py").write_text(
            text.replace("__CONFIGURED__", repr((self.name, worker_url or url, str(self.ledger))))
        )
        self.tasks = _load(folder / "tasks.py")
        self.app: Penstock = self.tasks.app
        self.app.settings = Penstock(self.name, url=url).settings
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, lease: str = f"{LEASE:g}s") -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "penstock.cli", "worker", "tasks:app", "--lease", lease, *arguments]
        log = self.folder / f"log-{len(self.workers)}"
        with log.open("ab") as file:
            process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.workers.append(process)
        return process

    async def started(
        self, *arguments: str, children: int = 1, lease: str = f"{LEASE:g}s"
    ) -> "subprocess.Popen[bytes]":
        """A worker whose children are up."""
        before = len(await self.nodes())
        process = self.start(*arguments, lease=lease)
        await eventually(lambda: self._are_up(before + children), within=60)
        return process

    async def _are_up(self, many: int) -> bool:
        return len(await self.nodes()) >= many

    async def nodes(self) -> list[Node]:
        return await self.app.client.views.workers()

    def log(self) -> str:
        return "".join(file.read_text() for file in sorted(self.folder.glob("log-*")))

    def let_end(self, name: str) -> None:
        """Make the file that a job `until` or `block_until` waits for."""
        Path(f"{self.ledger}-{name}").touch()

    # What the jobs did

    def lines(self, what: str = "start") -> list[Line]:
        if not self.ledger.exists():
            return []
        rows = [line.split() for line in self.ledger.read_text().splitlines()]
        return [Line(row[0], row[1], int(row[2]), float(row[3])) for row in rows if row[0] == what]

    def count(self, what: str = "start") -> Counter[str]:
        return Counter(line.job for line in self.lines(what))

    async def until_started(self, many: int, within: float = 30) -> list[Line]:
        await eventually(lambda: len(self.lines()) >= many, within=within)
        return self.lines()

    async def all_in(self, *states: str, within: float = 60) -> None:
        """Until every job is in one of these states."""
        try:
            await eventually(lambda: self._are_in(states), within=within)
        except TimeoutError:
            raise AssertionError(f"{await self.app.client.views.counts()}\n{self.log()[-5000:]}") from None

    async def _are_in(self, states: tuple[str, ...]) -> bool:
        counts = await self.app.client.views.counts()
        return not any(n for row in counts.values() for state, n in row.items() if state not in states)

    async def events(self, *verbs: str) -> list[Event]:
        events: list[Event] = []
        after = "-"
        while page := await self.app.client.views.events(after):
            events += page
            after = page[-1].id
        return [event for event in events if event.verb in verbs]

    async def server_time(self) -> float:
        """Ms."""
        seconds, micros = await (await raw(self.app.client.engine)).time()
        return float(seconds * 1000 + micros / 1000)

    async def header(self, job: Any) -> Any:
        record = await self.app.client.views.job(job.id)
        assert record is not None
        return record.header

    # The end

    async def stop(self, process: "subprocess.Popen[bytes]", within: float = 60) -> int:
        """Have it stop, and wait for its exit code."""
        process.send_signal(signal.SIGTERM)
        return int(await eventually(lambda: None if process.poll() is None else str(process.poll()), within=within))

    async def close(self) -> None:
        for process in self.workers:
            pids = tree(process.pid)
            for pid in (process.pid, *pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        with contextlib.suppress(Exception):
            await (await raw(self.app.client.engine)).delete(*self.app.client.engine.all_keys())
        await self.app.aclose()


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tasks_{secrets.token_hex(4)}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.asynccontextmanager
async def crew_at(folder: Path, url: str, worker_url: str | None = None) -> AsyncIterator[Crew]:
    """A crew for one test; at its end every invariant must hold, and no process is left."""
    crew = Crew(folder, url, worker_url)
    try:
        yield crew
        await _until_sound(crew.app.client.engine)
    finally:
        await crew.close()


async def _until_sound(engine: Engine) -> None:
    """The audit reads in pages, and a worker that starts meanwhile is in some of them. Only real damage stays."""
    for _ in range(MAX_AUDITS):
        if not (findings := await audit(engine)):
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"what is stored is not sound: {findings}")


def tree(pid: int) -> list[int]:
    """All descendants of a process."""
    descendants: list[int] = []
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    wave = [pid]
    while wave:
        wave = [child for child, parent in parents.items() if parent in wave]
        descendants += wave
    return descendants


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def output_of(*program: str) -> str:
    """What Python prints when it runs this."""
    process = await asyncio.create_subprocess_exec(sys.executable, *program, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return out.decode()


async def gone(*pids: int, within: float = 10) -> None:
    await eventually(lambda: not any(map(alive, pids)), within=within)


async def pause(seconds: float) -> None:
    """Let a fault last."""
    await asyncio.sleep(seconds)
