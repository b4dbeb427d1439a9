"""How the cost of a job grows: `python -m benchmarks growth`, about ten minutes.

What a job takes of the server's CPU while it is enqueued and while it is drained: with 1,000, 100,000 and 5,000,000
others that wait behind it, with 1 to 1,000 lanes in use, and with 1 to 8 worker processes. Each row has a fresh server
and ends with an audit, but for those with so many jobs that it would take longer than all the rest.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import processes
from benchmarks.server import Server, running
from penstock import Lane, Penstock
from penstock.engine.read.views import Views
from penstock.engine.repair.audit import audit

DEPTHS: Final = (1_000, 100_000, 5_000_000)
LANES: Final = (1, 10, 100, 1_000)
PROCESSES: Final = (1, 2, 4, 8)
AUDITED: Final = 1_000_000  #: jobs that an audit still reads in a reasonable time
WAIT_TIMEOUT: Final = 120.0  #: seconds for any one wait
BEGIN: Final = "<!-- growth: written by `python -m benchmarks growth --write` -->"
END: Final = "<!-- end of growth -->"

app = Penstock("growth", url=os.environ.get("BENCH_URL"))


@app.task
async def nothing(number: int) -> None:
    """What is measured is everything around it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured; the smoke test has little time."""

    depths: tuple[int, ...] = DEPTHS
    lanes: tuple[int, ...] = LANES
    processes: tuple[int, ...] = PROCESSES
    jobs: int = 20_000
    repeats: int = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: microseconds of the server's CPU per job, and jobs per second."""

    what: str
    number: int
    enqueue: float
    drain: float
    rate: float


class WorkerGroup:
    """`penstock worker` with some processes, which can be held still while the queue is filled."""

    def __init__(self, url: str, number: int, folder: Path) -> None:
        command = [sys.executable, "-m", "penstock.cli", "worker", f"{__name__}:app", "-p", str(number), "-c", "200"]
        environment = {**os.environ, "BENCH_URL": url, "PYTHONPATH": os.pathsep.join(sys.path)}
        with (folder / "worker.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def hold(self) -> None:
        processes.send(processes.tree(self._process.pid), signal.SIGSTOP)

    def go(self) -> None:
        processes.send(processes.tree(self._process.pid), signal.SIGCONT)

    def end(self) -> None:
        self.go()
        processes.end(self._process.pid)
        self._process.wait()


@contextmanager
def _worker_group(url: str, number: int, folder: Path) -> Iterator[WorkerGroup]:
    crew = WorkerGroup(url, number, folder)
    try:
        yield crew
    finally:
        crew.end()


class Experiment:
    """The app of this process on one fresh server."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._folder = server, folder
        self.app = Penstock("growth", url=server.url)
        self.nothing = self.app.task(name=nothing.name)(nothing.function)
        self._views = Views(self.app.client.engine)

    async def row(self, what: str, number: int, calls: Callable[[], Iterable[Any]], scale: Scale, crew: int = 1) -> Row:
        """Hold the workers, fill the queue, let them go; the repeat that cost the least counts."""
        with _worker_group(self._server.url, crew, self._folder) as workers:
            await self._until(lambda workers, _: workers >= crew)
            await asyncio.sleep(1.0)  # until they have done what they do once
            repeats = [await self._repeat(workers, list(calls())) for _ in range(scale.repeats)]
        enqueue, drain, rate = (min(values) for values in zip(*((e, d, -r) for e, d, r in repeats), strict=True))
        return Row(what, number, enqueue, drain, -rate)

    async def _repeat(self, workers: WorkerGroup, calls: list[Any]) -> tuple[float, float, float]:
        workers.hold()
        used = self._used()
        await self.app.enqueue_many(calls)
        enqueue = self._used() - used
        used, done, begin = self._used(), await self._done(), time.monotonic()
        workers.go()
        await self._until(lambda _, now: now - done >= len(calls))
        seconds = time.monotonic() - begin
        workers.hold()
        drained = await self._done() - done  # perhaps a few of those behind them, too
        drain = self._used() - used
        workers.go()
        return 1e6 * enqueue / len(calls), 1e6 * drain / drained, drained / seconds

    async def fill(self, number: int) -> None:
        behind = self.nothing.using(priority=99)
        for first in range(0, number, 100_000):
            await self.app.enqueue_many(behind.call(i) for i in range(first, min(first + 100_000, number)))
        await asyncio.sleep(2.0)  # until all of it is in the append-only file
        self._server.settle()

    async def check(self) -> None:
        if findings := await audit(self.app.client.engine):
            raise SystemExit(f"the audit found: {findings[:3]}")

    async def _until(self, true: Callable[[int, int], bool]) -> None:
        until = time.monotonic() + WAIT_TIMEOUT
        while not true(len(await self._views.workers()), await self._done()):
            if time.monotonic() > until:
                raise SystemExit(
                    f"the workers did not get there within {WAIT_TIMEOUT:g} s; see {self._folder / 'worker.log'}"
                )
            await asyncio.sleep(0.02)

    async def _done(self) -> int:
        return (await self._views.counts()).get("default", {}).get("done", 0)

    def _used(self) -> float:
        return self._server.meter().cpu


async def _depth(experiment: Experiment, stored: int, scale: Scale) -> Row:
    await experiment.fill(stored)
    first = experiment.nothing.using(priority=0)
    return await experiment.row("queued", stored, lambda: (first.call(i) for i in range(scale.jobs)), scale)


async def _lanes(experiment: Experiment, lanes: int, scale: Scale) -> Row:
    kinds = [experiment.nothing.using(lane=Lane(f"lane:{n}", limit=1_000)) for n in range(lanes)]
    return await experiment.row("lanes", lanes, lambda: (kinds[i % lanes].call(i) for i in range(scale.jobs)), scale)


async def _processes(experiment: Experiment, number: int, scale: Scale) -> Row:
    calls = experiment.nothing.call
    return await experiment.row("processes", number, lambda: (calls(i) for i in range(scale.jobs)), scale, crew=number)


def measure(scale: Scale | None = None, report: Callable[[str], None] = print) -> list[Row]:
    """Measure all rows, and report each."""
    scale = scale or Scale()
    steps = [(_depth, scale.depths), (_lanes, scale.lanes), (_processes, scale.processes)]
    rows = []
    for step, numbers in steps:
        for number in numbers:
            rows.append(asyncio.run(_on_fresh_server(step, number, scale)))
            report(_line(rows[-1]))
    return rows


async def _on_fresh_server(step: Callable[..., Any], number: int, scale: Scale) -> Row:
    with running() as (server, folder):
        experiment = Experiment(server, folder)
        try:
            row: Row = await step(experiment, number, scale)
            if number <= AUDITED:
                await experiment.check()
        finally:
            await experiment.app.aclose()
    return row


def _line(row: Row) -> str:
    costs = f"enqueue {row.enqueue:6.1f} µs, drain {row.drain:6.1f} µs a job"
    return f"{row.number:>9,} {row.what:10} {costs}; {row.rate:8,.0f} jobs/s"


TITLES: Final = {"queued": "jobs queued behind", "lanes": "lanes in use", "processes": "worker processes"}


def section(rows: list[Row], when: str) -> str:
    """The part of the page about growth."""
    unit = "Microseconds of the server's CPU per job, and jobs per second"
    parts = [f"\n{unit}; measured {when}, best of three; each table is one run.\n"]
    for what, title in TITLES.items():
        matching = [row for row in rows if row.what == what]
        parts += [
            f"| {title} | enqueue (µs) | drain (µs) | against the first | drained (jobs/s) |",
            "|---|---|---|---|---|",
        ]
        parts += [
            f"| {row.number:,} | {row.enqueue:.1f} | {row.drain:.1f} "
            f"| {(row.enqueue + row.drain) / (matching[0].enqueue + matching[0].drain):.2f}× | {row.rate:,.0f} |"
            for row in matching
        ]
        parts.append("")
    return "\n".join(parts)


def write(rows: list[Row], page: Path) -> None:
    """Replace what the page says about growth."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    page.write_text(f"{before}{BEGIN}\n{section(rows, when)}\n{END}{after}")
