"""The run: a server, two worker processes, the chapters, and the table at the end."""

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from penstock.demo import chapters, crash
from penstock.demo.screen import Report, bad, good, heading, say
from penstock.demo.tasks import app
from penstock.engine.repair.audit import Finding, audit
from penstock.errors import PenstockError
from penstock.server.embedded import daemon

PROCESSES: Final = 2
_START_TIMEOUT: Final = 30.0  #: seconds for the worker processes to start, also on a busy machine


def main() -> int:
    """Run everything; exit code 0 if the audit at the end has no findings."""
    logging.getLogger("penstock").addHandler(logging.NullHandler())  # the demo prints its own story
    try:
        with _folder() as folder:
            clean = asyncio.run(_run(folder))
    except PenstockError as error:
        click.echo(f"The demo cannot run: {error}", err=True)
        return 3
    except KeyboardInterrupt:
        click.echo("\nStopped: workers and server have ended, the data is removed.", err=True)
        return 130
    return 0 if clean else 8


@contextmanager
def _folder() -> Iterator[Path]:
    """A directory for the server's data; at the end the server is stopped and the directory removed."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        yield folder
    finally:
        daemon.signal_owner_at(folder, daemon.WATCHER, signal.SIGTERM)
        lock = daemon.open_lock(folder, daemon.SERVER)
        daemon.stop(lock)
        os.close(lock)
        shutil.rmtree(folder)


async def _run(folder: Path) -> bool:
    began = time.monotonic()
    app.settings = replace(app.settings, url=f"embedded://{folder}")
    report = Report()
    async with app:
        heading("Penstock")
        await app.client.views.counts()
        good(f"an embedded server answers after {time.monotonic() - began:.2f} s; nothing was installed for it")
        async with _workers(folder):
            good(f"penstock worker -p {PROCESSES}: they are ready after {time.monotonic() - began:.2f} s")
            await chapters.locks(report)
            await chapters.priorities(report)
            await chapters.delays(report)
            await chapters.retries(report)
            await chapters.dead_letters(report, folder)
            await chapters.same_id(report)
            await chapters.batch(report)
            await crash.crash(report)
        findings = await audit(app.client.engine)
        counts = await app.client.views.counts()
    report.add("the whole demo", f"{time.monotonic() - began:.1f} s")
    _print_summary(report, findings, sum(sum(states.values()) for states in counts.values()))
    return not findings


@asynccontextmanager
async def _workers(folder: Path) -> AsyncIterator[None]:
    """A supervisor and its worker processes, as users start them; they end with the block."""
    command = ["-m", "penstock.cli", "worker", "penstock.demo.tasks:app", "-p", str(PROCESSES), "-c", "50"]
    log = folder / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603, ASYNC220  (our own; it is only started here)
            [sys.executable, *command, "--url", f"embedded://{folder}"], stdout=output, stderr=output
        )
    try:
        await _wait_for_workers(process, log)
        yield
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


async def _wait_for_workers(process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while len(await app.client.views.workers()) < PROCESSES:
        if process.poll() is not None or time.monotonic() > deadline:
            raise PenstockError(f"its workers did not start:\n{log.read_text()}")  # noqa: ASYNC240
        await asyncio.sleep(0.02)


def _print_summary(report: Report, findings: Sequence[Finding], jobs: int) -> None:
    heading("Measured in this run")
    report.show()
    click.echo()
    if findings:
        bad(f"the audit of {jobs:,} jobs has {len(findings)} findings:")
        for finding in findings:
            say(f"  {finding.rule}: {finding.subject} {finding.text}")
    else:
        good(f"the audit of all that is stored, {jobs:,} jobs, every invariant: clean")
