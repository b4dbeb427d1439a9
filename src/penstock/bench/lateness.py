"""Measures lateness: jobs that are due at known instants, beside bare timers of asyncio in the same run."""

import asyncio
import random
import secrets
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from penstock.app import Penstock
from penstock.bench import Measure
from penstock.engine.repair.audit import audit
from penstock.model.durations import instant

_LEAD: Final = 1.0  #: seconds before the first job is due
_IDLE_SECONDS: Final = 20.0  #: for which a worker waits for a single job


async def run(
    url: str | None = None, jobs: int = 2_000, seconds: float = 10.0, report: Callable[[str], None] = print
) -> list[Measure]:
    """Measure how late jobs start that are due over some seconds, and what waiting for a single job costs."""
    app = Penstock("bench-" + secrets.token_hex(4), url=url)
    started: dict[int, float] = {}
    all_started = asyncio.Event()

    @app.task(name="bench:due")
    async def due(number: int) -> None:
        started[number] = time.time()
        if len(started) == jobs:
            all_started.set()

    async with app:
        offsets = sorted(random.uniform(0, seconds) for _ in range(jobs))  # noqa: S311  (not a secret)
        bare = await _asyncio_lateness(offsets)
        async with app.worker():
            begin = time.time() + _LEAD + jobs / 2_000
            moments = [_moment(begin + offset) for offset in offsets]
            await app.enqueue_many(due.using(at=moment).call(i) for i, moment in enumerate(moments))
            await all_started.wait()
            commands = await _commands_while_waiting(app)
        late = [started[i] * 1_000 - instant(moment) for i, moment in enumerate(moments)]
        report(f"{jobs:,} jobs due over {seconds:g} s: {sum(delay < 0 for delay in late)} early")
        report(f"audit: {await audit(app.client.engine) or 'clean'}")
        await (await app.client.endpoint.client()).delete(*app.client.engine.all_keys())
    return [
        Measure("lateness p50", _quantile(late, 50), "ms", _quantile(bare, 50)),
        Measure("lateness p99", _quantile(late, 99), "ms", _quantile(bare, 99)),
        Measure("lateness, early", float(sum(delay < 0 for delay in late)), "jobs"),
        Measure("waiting for one job", commands, "cmd/s"),
    ]


def table(measures: list[Measure]) -> str:
    """For a terminal."""
    lines = [f"{'':30}{'Penstock':>12}{'':8}{'bare timer':>12}"]
    for measure in measures:
        bare = "" if measure.bare is None else f"{measure.bare:>12.2f}"
        lines.append(f"{measure.name:30}{measure.value:>12.2f} {measure.unit:7}{bare}")
    return "\n".join(lines)


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(round(at, 3), UTC)


async def _asyncio_lateness(offsets: list[float]) -> list[float]:
    """Milliseconds by which the loop's own timers are late."""
    loop, late, done = asyncio.get_running_loop(), list[float](), asyncio.Event()
    begin = loop.time() + _LEAD

    def on_timer(at: float) -> None:
        late.append((loop.time() - at) * 1_000)
        if len(late) == len(offsets):
            done.set()

    for offset in offsets:
        loop.call_at(begin + offset, on_timer, begin + offset)
    await done.wait()
    return late


async def _commands_while_waiting(app: Penstock) -> float:
    """Commands per second that a worker sends while its only job is not due."""

    @app.task(name="bench:later")
    async def later() -> None:
        pass

    await later.using(delay="1h").enqueue()
    await asyncio.sleep(1)
    before, began = await _sent(app), time.monotonic()
    await asyncio.sleep(_IDLE_SECONDS)
    return (await _sent(app) - before) / (time.monotonic() - began)


async def _sent(app: Penstock) -> int:
    """Commands that clients have sent; those that scripts call have other names."""
    stats = await (await app.client.endpoint.client()).info("commandstats")
    return sum(
        int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "fcall", "eval", "ping")
    )


def _quantile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]
