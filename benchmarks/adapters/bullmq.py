"""The Python port of BullMQ: its worker is a class; a `def` runs in a thread by run_in_executor."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from bullmq import Queue, Worker

from benchmarks.adapters.jobs import URL, crash_on_loop, start

pool = ThreadPoolExecutor()


async def process(job, token):
    number = job.data["number"]
    if job.name == "thread":
        await asyncio.get_running_loop().run_in_executor(pool, start, number)
    elif job.name == "crash":
        await crash_on_loop(number)
    else:
        start(number)


async def work():
    worker = Worker("bench", process, {"connection": URL, "concurrency": 20, "autorun": False})
    await worker.run()


class Sender:
    kinds = ("async", "thread", "payload", "crash")

    async def open(self):
        self.queue = Queue("bench", {"connection": URL})

    async def send(self, job, **options):
        await self.queue.add(job.kind, self.data(job), {"removeOnComplete": True, **options})

    async def send_many(self, jobs):
        for first in range(0, len(jobs), 1_000):
            page = jobs[first : first + 1_000]
            opts = {"removeOnComplete": True}
            await self.queue.addBulk([{"name": job.kind, "data": self.data(job), "opts": opts} for job in page])

    async def send_later(self, job, seconds):
        await self.send(job, delay=round(seconds * 1_000))

    def data(self, job):
        return dict(zip(("number", "payload"), job.arguments, strict=False))

    async def close(self):
        await self.queue.close()
