"""The last chapter: a worker process is killed in the middle of its work."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from typing import Any, Final

from penstock.api.job import Job, JobStatus
from penstock.demo.chapters import RESULT_TIMEOUT
from penstock.demo.screen import Report, bad, chapter, good
from penstock.demo.tasks import app, render
from penstock.engine.read.views import Run

JOBS: Final = 100  #: as many as both processes have slots
JOB_SECONDS: Final = 1.5


async def crash(measured: Report) -> None:
    await chapter(
        "8  A worker process is killed",
        "kill -9",
        f"{JOBS} jobs run in two processes. One is killed; the supervisor, which runs no job, notices.",
    )
    jobs = await app.enqueue_many(render.call(JOB_SECONDS) for _ in range(JOBS))
    runs = await _runs(JOBS)
    victim, lost = max(runs.items(), key=lambda item: len(item[1]))
    pid = await _pid(victim)
    last_reaped = asyncio.create_task(_reaped_at({run.id for run in lost}))
    await asyncio.sleep(0)
    killed = time.time()
    os.kill(pid, signal.SIGKILL)
    bad(f"process {pid} is dead, and {len(lost)} of the {JOBS} jobs ran in it")
    back = await last_reaped - killed
    good(f"after {back * 1000:.0f} ms they are back at the head of the line")
    ended = await asyncio.gather(*(_ended(job) for job in jobs))
    _report(ended, {run.id for run in lost}, killed, back, measured)


def _report(ended: Sequence[JobStatus], lost: set[str], killed: float, back: float, measured: Report) -> None:
    rerun = [status for status in ended if status.attempt > 1]
    started = min(status.started.timestamp() for status in rerun if status.started) - killed
    done = sum(status.state == "done" for status in ended)
    undisturbed = sum(status.attempt == 1 for status in ended if status.id not in lost)
    good(f"after {started * 1000:.0f} ms the first of them runs again, and in the end {done} of {len(ended)} are done")
    good(f"{len(rerun)} began again: those of the dead process; the other {undisturbed} went on undisturbed")
    measured.add("process killed: its jobs back in line after", f"{back * 1000:.0f} ms")
    measured.add("process killed: the first runs again after", f"{started * 1000:.0f} ms")
    measured.add(f"process killed: of {len(ended)} jobs lost", str(len(ended) - done))


async def _runs(number: int) -> dict[str, list[Run]]:
    """Worker → its runs, as soon as so many jobs run."""
    async with asyncio.timeout(RESULT_TIMEOUT):
        while sum(map(len, (runs := await app.client.views.runs()).values())) < number:  # noqa: ASYNC110  (what the server knows)
            await asyncio.sleep(0.01)
    return runs


async def _pid(worker: str) -> int:
    (info,) = [node.info for node in await app.client.views.workers() if node.worker == worker]
    return int(json.loads(info)["pid"])


async def _reaped_at(jobs: set[str]) -> float:
    """When the last of these jobs was taken back, by the server's clock, which is this machine's."""
    async with asyncio.timeout(RESULT_TIMEOUT):
        async for event in app.events(kinds=["reap"], since="10s"):
            jobs.discard(event.job)
            if not jobs:
                return event.at.timestamp()
    raise TimeoutError


async def _ended(job: Job[Any]) -> JobStatus:
    await job.result(timeout=RESULT_TIMEOUT)
    return await job.status()
