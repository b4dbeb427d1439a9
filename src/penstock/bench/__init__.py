"""Measures this machine: Penstock beside a bare loop, on the same server and in this process.

Compare figures of one run with each other; alone they say little.
"""

import asyncio
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.api.task import Task
from penstock.app import Penstock
from penstock.bench.bare import PAGE, Bare
from penstock.engine.repair.audit import audit

ROUNDS: Final = 5  #: of a comparison with the bare loop; the median counts, for the machine is never idle


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure, and the bare loop's beside it where there is one."""

    name: str
    value: float
    unit: str
    bare: float | None = None

    @property
    def share(self) -> float | None:
        return None if not self.bare else self.value / self.bare


async def run(url: str | None = None, jobs: int = 20_000, report: Callable[[str], None] = print) -> list[Measure]:
    """Measure everything; takes about a minute with 20,000 jobs."""
    measures: list[Measure] = []
    async with _app(url) as (app, async_task, thread_task):
        client = await app.client.endpoint.client()
        bare = await Bare(client).open()
        report(f"{jobs:,} jobs, server {app.client.endpoint}")
        payloads = [["bench:noop", {"number": i}] for i in range(jobs)]
        rounds = [await _round(app, bare, async_task, payloads) for _ in range(ROUNDS)]
        put, take, bare_put, bare_take = _median(rounds)
        measures.append(Measure("enqueue_many", put, "jobs/s", bare_put))
        measures.append(Measure("drain, async tasks", take, "jobs/s", bare_take))
        await app.enqueue_many(thread_task.call(i) for i in range(jobs // 4))
        measures.append(Measure("drain, def tasks in threads", await _drain(app, jobs // 4), "jobs/s", bare_take))
        measures.append(Measure("enqueue, 100 at once", await _concurrent(async_task, jobs // 2), "jobs/s", bare_put))
        round_trips = await _rate(1_000, _round_trips(bare, payloads[:1_000]))
        measures.append(Measure("enqueue, one by one", await _one_by_one(async_task, 1_000), "jobs/s", round_trips))
        measures.append(Measure("enqueue_sync, one by one", _one_by_one_sync(async_task, 1_000), "jobs/s", round_trips))
        await app.run_until_idle()
        await bare.drain(_nothing)
        measures += await _latency(app, bare, 300)
        measures += await _lateness(app, 50)
        findings = await audit(app.client.engine)
        report(f"audit: {findings or 'clean'}")
        await client.delete(*app.client.engine.all_keys(), *bare.keys)
    return measures


@asynccontextmanager
async def _app(url: str | None) -> AsyncIterator[tuple[Penstock, Task[[int], None, Any], Task[[int], None, Any]]]:
    app = Penstock("bench-" + secrets.token_hex(4), url=url)

    @app.task(name="bench:noop")
    async def noop(number: int) -> None:
        pass

    @app.task(name="bench:noop_thread")
    def noop_thread(number: int) -> None:
        pass

    async with app:
        yield app, noop, noop_thread


class _Round(NamedTuple):
    put: float
    take: float
    bare_put: float
    bare_take: float


async def _round(app: Penstock, bare: Bare, task: Task[[int], None, Any], payloads: list[Any]) -> _Round:
    """Measure the bare loop and Penstock, one right after the other."""
    jobs = len(payloads)
    bare_put, bare_take = await _rate(jobs, bare.put(payloads)), await _rate(jobs, bare.drain(_nothing))
    put = await _rate(jobs, app.enqueue_many(task.call(i) for i in range(jobs)))
    return _Round(put, await _drain(app, jobs), bare_put, bare_take)


def _median(rounds: list[_Round]) -> _Round:
    """The round whose drain has the median share of the bare loop's."""
    return sorted(rounds, key=lambda rates: rates.take / rates.bare_take)[len(rounds) // 2]


async def _rate(number: int, work: Awaitable[Any]) -> float:
    start = time.perf_counter()
    await work
    return number / (time.perf_counter() - start)


async def _nothing(_job: object) -> None:
    pass


async def _round_trips(bare: Bare, jobs: list[Any]) -> None:
    """Round trips that store one job each, one after another."""
    for job in jobs:
        await bare.put([job])


async def _drain(app: Penstock, number: int) -> float:
    # Two leases of a hundred jobs are on their way at once, each as large as one of the bare loop.
    return await _rate(number, app.run_until_idle(concurrency=2 * PAGE))


async def _concurrent(task: Task[[int], None, Any], number: int) -> float:
    async def caller() -> None:
        for i in range(number // 100):
            await task.enqueue(i)

    return await _rate(number, asyncio.gather(*(caller() for _ in range(100))))


async def _one_by_one(task: Task[[int], None, Any], number: int) -> float:
    start = time.perf_counter()
    for i in range(number):
        await task.enqueue(i)
    return number / (time.perf_counter() - start)


def _one_by_one_sync(task: Task[[int], None, Any], number: int) -> float:
    start = time.perf_counter()
    for i in range(number):
        task.enqueue_sync(i)
    return number / (time.perf_counter() - start)


async def _latency(app: Penstock, bare: Bare, number: int) -> list[Measure]:
    """From enqueue to start, one job at a time on an idle worker."""
    started: asyncio.Queue[float] = asyncio.Queue()

    @app.task(name="bench:stamp")
    async def stamp() -> None:
        started.put_nowait(time.perf_counter())

    async def bare_stamp(_job: object) -> None:
        started.put_nowait(time.perf_counter())

    async def waits(send: Callable[[], Awaitable[Any]]) -> list[float]:
        latencies = []
        for _ in range(number):
            begin = time.perf_counter()
            await send()
            latencies.append((await started.get() - begin) * 1_000)
            await asyncio.sleep(0.005)  # until the worker waits again
        return latencies

    async with app.worker():
        ours = await waits(stamp.enqueue)
    working = asyncio.create_task(bare.work(bare_stamp))
    theirs = await waits(lambda: bare.put([None]))
    working.cancel()
    return _quantiles("idle latency", ours, theirs)


async def _lateness(app: Penstock, number: int) -> list[Measure]:
    """How long after their due time jobs start, beside the timers of an asyncio loop."""
    late: asyncio.Queue[float] = asyncio.Queue()

    def note(due: float) -> None:
        late.put_nowait((time.monotonic() - due) * 1_000)

    @app.task(name="bench:late")
    async def stamp(due: float) -> None:
        note(due)

    delays = [0.5 + i / number for i in range(number)]
    async with app.worker():
        for delay in delays:
            await stamp.using(delay=delay).enqueue(time.monotonic() + delay)
        ours = [await late.get() for _ in delays]
    for delay in delays:
        asyncio.get_running_loop().call_later(delay, note, time.monotonic() + delay)
    return _quantiles("lateness", ours, [await late.get() for _ in delays])


def _quantiles(name: str, ours: list[float], bare: list[float]) -> list[Measure]:
    mine, other = statistics.quantiles(ours, n=100), statistics.quantiles(bare, n=100)
    return [Measure(f"{name} p{n}", mine[n - 1], "ms", other[n - 1]) for n in (50, 99)]


def table(measures: list[Measure]) -> str:
    """For a terminal."""
    lines = [f"{'':30}{'Penstock':>12}{'':8}{'bare loop':>12}{'share':>8}"]
    for measure in measures:
        digits = 0 if measure.unit == "jobs/s" else 2
        bare = "" if measure.bare is None else f"{measure.bare:>12,.{digits}f}"
        share = f"{measure.share:>8.0%}" if measure.share is not None and measure.unit == "jobs/s" else ""
        lines.append(f"{measure.name:30}{measure.value:>12,.{digits}f} {measure.unit:7}{bare}{share}")
    return "\n".join(lines)
