"""A worker with schedules whose clock is wrong: `python -m tests.worker.schedule_node URL NAME HOURS`."""

import asyncio
import random
import sys
import time
from typing import Any

from penstock import Penstock

SCHEDULES: dict[str, dict[str, Any]] = {
    "all": {"catch_up": "all", "overlap": "allow"},
    "latest": {"catch_up": "latest", "overlap": "allow"},
    "none": {"catch_up": "none", "overlap": "allow"},
    "skip": {"catch_up": "all", "overlap": "skip"},
    "queue": {"catch_up": "all", "overlap": "queue"},
}


def make_app(url: str, namespace: str) -> Penstock:
    app = Penstock(namespace, url=url)
    for name, options in SCHEDULES.items():

        @app.every("1s", id=name, kwargs={"slow": name in {"skip", "queue"}}, **options)
        @app.task(name=name, retries=100)
        async def run(*, slow: bool) -> None:
            await asyncio.sleep(random.uniform(0, 1.2) if slow else 0)

    return app


def _break_the_clock(hours: float) -> None:
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + hours * 3600
    time.time_ns = lambda: real_ns() + int(hours * 3600 * 10**9)


if __name__ == "__main__":
    _break_the_clock(float(sys.argv[3]))
    asyncio.run(make_app(sys.argv[1], sys.argv[2]).worker(lease="2s", concurrency=20).run())
