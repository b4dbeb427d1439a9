"""A guided run of a few seconds: `penstock demo`, `make demo` or `python -m penstock.demo`.

It works on an embedded server in a temporary directory, which it removes. Whatever it prints was measured in that run.
"""

import asyncio
import itertools
import logging
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click

from penstock.app import Penstock
from penstock.backoff import Backoff
from penstock.context import current_job
from penstock.engine.audit import Finding, audit
from penstock.errors import JobFailed, PenstockError
from penstock.handle import Job, JobStatus
from penstock.server import daemon

JOBS: Final = 2_000
PRIORITIES: Final = (0, 30, 60, 90)
DELAYS: Final = (0.3, 0.45, 0.6, 0.75, 0.9)
PRODUCERS: Final = 20
LEASE: Final = "1s"  #: short, so that the loss of a worker is soon noticed

app = Penstock("demo")


# The tasks


@app.task
async def ordinary() -> int:
    """Gives the fence of its start, a number that grows from start to start: so the order can be told afterwards."""
    return current_job().fence


@app.task(retries=3, backoff=Backoff("exponential", base="150ms", jitter=False))
async def flaky(failures: int) -> str:
    attempt = current_job().attempt
    if attempt <= failures:
        raise ConnectionError(f"the other side hung up on attempt {attempt}")
    return f"went through on attempt {attempt}"


@app.task(retries=1, backoff=["100ms"])
async def needs(file: str) -> str:
    return Path(file).read_text()  # noqa: ASYNC240  (a few bytes)


@app.task(queue="long")
async def long(seconds: float) -> None:
    await asyncio.sleep(seconds)


# The run


@dataclass(slots=True)
class Report:
    """What was measured, for the table at the end."""

    rows: list[tuple[str, str]] = field(default_factory=list)

    def add(self, what: str, measured: str) -> None:
        self.rows.append((what, measured))


def main() -> int:
    """Run everything; 0 if the audit at the end found nothing."""
    logging.getLogger("penstock").addHandler(logging.NullHandler())  # the story is told here
    began = time.monotonic()
    try:
        with _folder() as folder:
            clean = asyncio.run(_run(folder, began))
    except PenstockError as error:
        click.echo(f"The demo cannot run: {error}", err=True)
        return 3
    except KeyboardInterrupt:
        click.echo("Stopped; the server has ended and its data is removed.", err=True)
        return 130
    return 0 if clean else 8


@contextmanager
def _folder() -> Iterator[Path]:
    """A directory for the server's data; afterwards the server has ended and the directory is gone."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        yield folder
    finally:
        daemon.end_at(folder, daemon.WATCHER, signal.SIGTERM)
        lock = daemon.open_lock(folder, daemon.SERVER)
        daemon.stop(lock)
        os.close(lock)
        shutil.rmtree(folder)


async def _run(folder: Path, began: float) -> bool:
    url = f"embedded://{folder}"
    app.settings = replace(app.settings, url=url)
    report = Report()
    async with app:
        say(f"A server of its own answers after {time.monotonic() - began:.1f} s; its data is in {folder}.")
        await _throughput(report)
        async with app.worker(queues="default", lease=LEASE):
            await _failures(report, folder / "missing.txt")
            await _delays(report)
            await _same_id(report)
            await _crash(report, url)
        findings = await audit(app.hub.engine)
        counts = await app.hub.views.counts()
    report.add("the whole demo", f"{time.monotonic() - began:.1f} s")
    _close(report, findings, sum(sum(states.values()) for states in counts.values()))
    return not findings


async def _throughput(report: Report) -> None:
    heading(1, f"{JOBS:,} jobs of {len(PRIORITIES)} priorities, two workers")
    tasks = [ordinary.using(priority=priority) for priority in PRIORITIES]
    began = time.monotonic()
    # The least urgent are sent first, so that the order of arrival is the wrong one.
    jobs = await app.enqueue_many(task.call() for task in reversed(tasks) for _ in range(JOBS // len(tasks)))
    sent = time.monotonic() - began
    say(f"enqueued in {sent:.2f} s, the least urgent first; now two workers start")
    bar = Bar(len(jobs))
    async with _two_workers():
        began = time.monotonic()
        fences = await asyncio.gather(*(_fence(job, bar) for job in jobs))
        drained = time.monotonic() - began
    urgency = [priority for priority in reversed(PRIORITIES) for _ in range(JOBS // len(PRIORITIES))]
    started = [priority for _, priority in sorted(zip(fences, urgency, strict=True))]
    # The most urgent that started at its place or later: a job of less urgency than that was too early.
    rest = list(itertools.accumulate(reversed(started), min))[::-1]
    wrong = sum(mine > best for mine, best in zip(started, rest, strict=True))
    say(f"all done in {drained:.2f} s; {wrong} of them started before a more urgent one")
    report.add(f"enqueue {JOBS:,} jobs", f"{JOBS / sent:,.0f} a second")
    report.add(f"run {JOBS:,} jobs, two workers in one process", f"{JOBS / drained:,.0f} a second")
    report.add("jobs that started before a more urgent one", str(wrong))


@asynccontextmanager
async def _two_workers() -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(app.worker(queues="default", lease=LEASE, concurrency=50))
        yield


async def _fence(job: Job[int], bar: "Bar") -> int:
    fence = await job.result(timeout=30)
    bar.step()
    return fence


async def _failures(report: Report, file: Path) -> None:
    heading(2, "A job that fails twice, and one that needs help")
    job = await flaky.enqueue(2)
    result = await job.result(timeout=10)
    status = await job.status()
    waits = _waits(status)
    for failure, wait in zip(status.attempts, waits, strict=True):
        say(f"attempt {failure.number} failed: {failure.message}; the next one came after {wait:.0f} ms")
    say(f"then it {result}")
    report.add("waits before a retry (asked for: 150, 300 ms)", f"{', '.join(f'{wait:.0f}' for wait in waits)} ms")
    await _revival(report, file)


def _waits(status: JobStatus) -> list[float]:
    """Milliseconds from each failure to the start that followed it."""
    starts = [failure.started for failure in status.attempts[1:]] + [status.started or status.since]
    return [
        (start - failure.ended).total_seconds() * 1000 for failure, start in zip(status.attempts, starts, strict=True)
    ]


async def _revival(report: Report, file: Path) -> None:
    job = await needs.enqueue(str(file))
    try:
        await job.result(timeout=10)
    except JobFailed:
        status = await job.status()
        say(f"another failed {status.attempt} times and is {status.state}: {status.attempts[-1].message}")
    file.write_text("here it is")  # noqa: ASYNC240
    await job.retry()
    say(f"the file is put there, the job revived, and it gives {await job.result(timeout=10)!r}")
    report.add("dead job, cause mended, revived", (await job.status()).state)


async def _delays(report: Report) -> None:
    heading(3, "Delayed jobs start when they are due")
    jobs = [await ordinary.using(delay=delay).enqueue() for delay in DELAYS]
    late = [_late(await _ended(job)) for job in jobs]
    for delay, ms in zip(DELAYS, late, strict=True):
        say(f"due in {delay * 1000:.0f} ms: started {ms:.0f} ms late")
    report.add(
        f"{len(late)} delayed jobs: how late, by the server's clock",
        f"{statistics.median(late):.0f} ms median, {max(late):.0f} ms worst",
    )


async def _ended(job: Job[Any]) -> JobStatus:
    await job.result(timeout=15)
    return await job.status()


def _late(status: JobStatus) -> float:
    if status.started is None or status.due is None:
        raise PenstockError(f"job {status.id} has no times to compare")
    return (status.started - status.due).total_seconds() * 1000


async def _same_id(report: Report) -> None:
    heading(4, f"{PRODUCERS} producers send the same id at the same moment")
    barrier = threading.Barrier(PRODUCERS)

    def produce() -> Job[int]:
        barrier.wait()
        return ordinary.using(id="order-4711").enqueue_sync()

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(PRODUCERS) as threads:
        jobs = await asyncio.gather(*(loop.run_in_executor(threads, produce) for _ in range(PRODUCERS)))
    status = await _ended(jobs[0])
    made = sum(job.created for job in jobs)
    say(f"{made} made the job, {len(jobs) - made} were told of it; {len(set(jobs))} job, {status.attempt} run")
    report.add(f"jobs from {PRODUCERS} producers of one id", f"{made}, runs: {status.attempt}")


async def _crash(report: Report, url: str) -> None:
    heading(5, "A worker process is killed in the middle of its work")
    jobs = await app.enqueue_many(long.call(0.8) for _ in range(8))
    with _process(url) as process:
        held = await _held(4)
        process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
    say(f"process {process.pid} is killed (SIGKILL) while it runs {held} of {len(jobs)} jobs; its lease was {LEASE}")
    while await _running():  # noqa: ASYNC110  (what the server counts is no event of this loop)
        await asyncio.sleep(0.01)
    back = time.monotonic() - killed
    say(f"after {back:.2f} s its jobs are back in line; another worker starts")
    async with app.worker(queues="long", lease=LEASE):
        ended = [await _ended(job) for job in jobs]
    again = sum(status.attempt > 1 for status in ended)
    done = sum(status.state == "done" for status in ended)
    say(f"{done} of {len(jobs)} are done, {again} of them on their second attempt")
    report.add("killed worker: its jobs back in line after", f"{back:.2f} s (lease {LEASE})")
    report.add(f"of its {len(jobs)} jobs done in the end", str(done))


@contextmanager
def _process(url: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker as you would start one, with four slots."""
    command = ["-m", "penstock.cli", "worker", "penstock.demo:app", "--url", url, "-q", "long", "-c", "4"]
    process = subprocess.Popen(  # noqa: S603  (our own)
        [sys.executable, *command, "--lease", LEASE], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _running() -> int:
    return (await app.hub.views.counts()).get("long", {}).get("running", 0)


async def _held(number: int) -> int:
    async with asyncio.timeout(15):
        while (running := await _running()) < number:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return running


# What is seen of it


class Bar:
    """Progress: one line that moves on a terminal, a line per quarter elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._shown = 0
        self._began = time.monotonic()
        self._live = sys.stdout.isatty()
        self._steps = 200 if self._live else 4

    def step(self) -> None:
        self._done += 1
        at = self._done * self._steps // self._total
        if at > self._shown:
            self._shown = at
            self._draw()

    def _draw(self) -> None:
        share, seconds = self._done / self._total, time.monotonic() - self._began
        text = f"{self._done:>5,} of {self._total:,}  {share:>4.0%}  {seconds:.2f} s"
        if self._live:
            full = round(share * 30)
            end = "\n" if self._done == self._total else ""
            click.echo(f"\r   {'█' * full}{'░' * (30 - full)} {text}{end}", nl=False)
        else:
            say(text)


def heading(number: int, text: str) -> None:
    click.secho(f"\n{number}. {text}", bold=True)


def say(text: str) -> None:
    click.echo(f"   {text}")


def _close(report: Report, findings: Sequence[Finding], jobs: int) -> None:
    heading(6, "What was measured")
    left, right = (max(len(row[i]) for row in report.rows) for i in (0, 1))
    for what, measured in report.rows:
        say(f"{what:<{left}}  {measured:>{right}}")
    verdict = "clean" if not findings else f"{len(findings)} findings"
    click.secho(f"\n   audit: {verdict} ({jobs:,} jobs, every invariant)", bold=True)
    for finding in findings:
        say(f"{finding.rule}: {finding.subject} {finding.text}")


if __name__ == "__main__":
    sys.exit(main())
