"""Five nodes with wrong clocks and one-second schedules, killed and stopped at random: each tick at most once."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.audit import audit
from penstock.model.header import FINISHED
from penstock.model.schedule import job_of
from tests.conftest import namespace, open_engine
from tests.engine.factories import raw, standing_of
from tests.servers import Server
from tests.worker.schedule_node import SCHEDULES

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
CLOCKS = (-1.0, -0.5, 0.0, 0.5, 1.0)  # hours


class Nodes:
    def __init__(self, url: str, name: str) -> None:
        self._command = [sys.executable, "-m", "tests.worker.schedule_node", url, name]
        self._alive = [self._start(hours) for hours in CLOCKS]

    def _start(self, hours: float) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([*self._command, str(hours)], cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)

    def disturb(self) -> None:
        """One is killed and replaced, or stopped for a while, or all of them are."""
        at = random.randrange(len(CLOCKS))
        if random.random() < 0.5:
            self._alive[at].kill()
            self._alive[at].wait()
            self._alive[at] = self._start(CLOCKS[at])
        stopped = self._alive if random.random() < 0.2 else [self._alive[random.randrange(len(CLOCKS))]]
        for node in stopped:
            node.send_signal(signal.SIGSTOP)
        time.sleep(random.uniform(0.5, 4))
        for node in stopped:
            node.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for node in self._alive:
            node.kill()
            node.wait()


@contextlib.contextmanager
def nodes(url: str, name: str) -> Iterator[Nodes]:
    made = Nodes(url, name)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_each_tick_happens_at_most_once_and_is_missed_only_as_catch_up_says(single: Server) -> None:
    engine = open_engine(single.url, namespace())
    with nodes(single.url, engine.keys.namespace) as disturbed:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            disturbed.disturb()
    for name, options in SCHEDULES.items():
        await _check(engine, name, options["catch_up"], options["overlap"])
    assert await _overlaps(engine) == []
    assert await audit(engine) == []
    await (await raw(engine)).delete(*engine.all_keys())
    await engine.script_client.endpoint.aclose()


async def _check(engine: Engine, name: str, catch_up: str, overlap: str) -> None:
    standing = await standing_of(engine, name)
    jobs = sorted([job_id async for job_id, header in Views(engine).headers() if header.task == name])
    first = min(_nominal(job_id) for job_id in jobs)
    ticks = [job_of(name, at * 1000) for at in range(first, standing.next // 1000)]
    waiting = standing.line[::2]
    print(
        f"{name}: {len(ticks)} ticks, {standing.made} made, {standing.skipped} skipped, {len(waiting)} waiting,"
        f" {standing.missed} gaps"
    )
    assert len(ticks) > SECONDS / 2
    assert standing.made == len(jobs) == len(set(jobs))
    assert set(jobs) <= set(ticks)
    if catch_up == "all":
        assert standing.made + standing.skipped + len(waiting) == len(ticks)
    else:
        assert len(ticks) - len(jobs) >= standing.missed
        assert standing.missed > 0 or len(ticks) == len(jobs)
    assert overlap == "skip" or standing.skipped == 0


def _nominal(job_id: str) -> int:
    return int(time.mktime(time.strptime(job_id.split("@")[1], "%Y-%m-%dT%H:%M:%SZ"))) - time.timezone


async def _overlaps(engine: Engine) -> list[str]:
    """Jobs of schedules that may not overlap which were made while the one before was unfinished."""
    unfinished: dict[str, set[str]] = {"skip": set(), "queue": set()}
    overlaps, after, finished = list[str](), "-", {"complete", "bury", "cancel", "expire"} | FINISHED
    while events := await Views(engine).events(after):
        after = events[-1].id
        for event in events:
            if event.task not in unfinished or event.verb.endswith("_cron"):
                continue
            if event.verb == "enqueue":
                overlaps += [event.job for _ in unfinished[event.task]]
                unfinished[event.task].add(event.job)
            elif event.verb in finished or event.note == "crash_loop":
                unfinished[event.task].discard(event.job)
    return overlaps
