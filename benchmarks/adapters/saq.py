"""SAQ: `async def` jobs; a `def` runs in a thread by run_in_executor."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import uvloop
from saq import Queue

from benchmarks.adapters.jobs import URL, crash_on_loop, start

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
pool = ThreadPoolExecutor()
queue = Queue.from_url(URL, name="bench", max_concurrent_ops=100)


async def run_async(ctx, *, number):
    start(number)


async def run_thread(ctx, *, number):
    await asyncio.get_running_loop().run_in_executor(pool, partial(start, number))


async def run_payload(ctx, *, number, payload):
    start(number)


async def run_crash(ctx, *, number):
    await crash_on_loop(number)


TASKS = {"async": "run_async", "thread": "run_thread", "payload": "run_payload", "crash": "run_crash"}
settings = {"queue": queue, "functions": [run_async, run_thread, run_payload, run_crash], "concurrency": 500}


class Sender:
    kinds = tuple(TASKS)

    async def open(self):
        await queue.connect()

    async def send(self, job, **options):
        arguments = dict(zip(("number", "payload"), job.arguments, strict=False))
        if job.kind == "crash":
            options = {"retries": 3}  # its time-out of 10 s is how a sweep sees that the worker is gone
        await queue.enqueue(TASKS[job.kind], **arguments, ttl=-1, **options)

    async def send_many(self, jobs):
        for first in range(0, len(jobs), 100):
            await asyncio.gather(*map(self.send, jobs[first : first + 100]))

    async def send_later(self, job, seconds):
        await self.send(job, scheduled=time.time() + seconds)

    async def close(self):
        await queue.disconnect()
