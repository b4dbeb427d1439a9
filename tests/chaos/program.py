"""A program with a worker inside: `python -m tests.chaos.program LEASE [STREAMS]`, each for so many jobs at once."""

import asyncio
import contextlib
import random
import signal
import sys
from typing import Any

from penstock import StaleLease
from penstock.errors import PenstockError
from tests.chaos.tasks import act, app, hands, noted


async def consume(limit: int) -> None:
    """Take jobs by hand for as long as the program runs; entered anew when the server was away for too long."""
    while True:
        with contextlib.suppress(PenstockError):
            async with hands.queue("hand").stream(limit=limit) as leases, asyncio.TaskGroup() as group:
                async for lease in leases:
                    group.create_task(handle(lease))
        await asyncio.sleep(0.5)


async def handle(lease: Any) -> None:
    """Many lose their patience, most of these in the moment in which the job is settled."""
    seconds = lease.job.arguments["seconds"]
    patience = seconds + random.uniform(-0.002, 0.006) if random.random() < 0.4 else None
    with contextlib.suppress(StaleLease, PenstockError, TimeoutError, Exception):
        async with asyncio.timeout(patience), lease as job:
            with noted(job):
                await asyncio.sleep(seconds)
                lease.result = act(job, lease.job.arguments["fails"], lease.job.arguments["how"])


async def main(lease: str, *streams: str) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    while not stopped.is_set():
        try:
            async with app.worker(lease=lease, concurrency=6):
                consumers = [asyncio.create_task(consume(int(limit))) for limit in streams]
                await stopped.wait()
                for consumer in consumers:
                    consumer.cancel()
                await asyncio.gather(*consumers, return_exceptions=True)
        except PenstockError as error:  # the server was away when it started
            print(f"again: {error}", file=sys.stderr)
            await asyncio.sleep(0.5)
    await app.aclose()
    await hands.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
