"""Batches whose workers are killed meanwhile: every count is right, and each batch ends once."""

import asyncio
import os
import random
import signal
import subprocess

import pytest

from penstock import Batch
from tests.worker.harness import Crew, tree

MEMBERS = 60


@pytest.mark.parametrize(
    "rounds", [3, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(1800)], id="50-kills")]
)
async def test_counts_are_exact_and_then_is_made_once_whatever_is_killed(crew: Crew, rounds: int) -> None:
    supervisor = await crew.started("-p", "2", "-c", "8", children=2)
    for seed in range(rounds):
        await _round(crew, supervisor, random.Random(seed))
    assert await crew.stop(supervisor) == 0


async def _round(crew: Crew, supervisor: "subprocess.Popen[bytes]", draw: random.Random) -> None:
    """Stream members in, kill a child in the middle, and have the batch end."""
    limit = draw.choice([None, 3, 10])
    async with crew.app.batch("killed", limit=limit, then=crew.tasks.ended, on_failure=crew.tasks.ended) as batch:
        killing = asyncio.create_task(_kill(supervisor, draw))
        fates = [draw.choice(["done", "done", "done", "dies"]) for _ in range(MEMBERS)]
        for fate in fates:
            await batch.add(crew.tasks.member.call(draw.random() / 20, fate))
            await asyncio.sleep(0.005)
    await killing
    status = await batch.wait(timeout=90)
    assert (status.total, status.pending, status.cancelled) == (MEMBERS, 0, 0)
    assert (status.done, status.dead) == (fates.count("done"), fates.count("dies"))
    await _ends(crew, batch, failed="dies" in fates)


async def _kill(supervisor: "subprocess.Popen[bytes]", draw: random.Random) -> None:
    await asyncio.sleep(draw.random() * 0.5)
    children = [pid for pid in tree(supervisor.pid) if pid != supervisor.pid]
    os.kill(draw.choice(children), signal.SIGKILL)


async def _ends(crew: Crew, batch: Batch, *, failed: bool) -> None:
    """What the batch made, each once: a job of its own name, and one line in the stream of events."""
    want = {f"{batch.id}@then-1"} | ({f"{batch.id}@on_failure-1"} if failed else set())
    for job in want:
        await crew.tasks.ended.job(job).result(timeout=60)
    made = [event.job for event in await crew.events("enqueue") if event.job.startswith(f"{batch.id}@")]
    assert sorted(made) == sorted(want)
    assert len([event for event in await crew.events("end_batch") if event.job == batch.id]) == 1
