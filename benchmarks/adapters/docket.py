"""docket (pydocket): `async def` jobs; a `def` runs in a thread by run_in_executor."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from docket import Docket

from benchmarks.adapters.jobs import URL, crash_on_loop, start

pool = ThreadPoolExecutor()


async def run_async(number: int) -> None:
    start(number)


async def run_thread(number: int) -> None:
    await asyncio.get_running_loop().run_in_executor(pool, start, number)


async def run_payload(number: int, payload: str) -> None:
    start(number)


async def run_crash(number: int) -> None:
    await crash_on_loop(number)


TASKS = {"async": run_async, "thread": run_thread, "payload": run_payload, "crash": run_crash}
tasks = list(TASKS.values())


class Sender:
    kinds = tuple(TASKS)

    async def open(self):
        self.docket = Docket(name="bench", url=f"{URL}?max_connections=1000", execution_ttl=timedelta(0))
        await self.docket.__aenter__()
        for task in tasks:
            self.docket.register(task)

    async def send(self, job):
        await self.docket.add(TASKS[job.kind])(*job.arguments)

    async def send_many(self, jobs):
        await self.docket.add_many([self.docket.call(TASKS[job.kind])(*job.arguments) for job in jobs])

    async def send_later(self, job, seconds):
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        await self.docket.add(TASKS[job.kind], when=at)(*job.arguments)

    async def close(self):
        await self.docket.__aexit__(None, None, None)
