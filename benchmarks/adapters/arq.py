"""arq: `async def` jobs; a `def` runs in a thread as its documentation shows, by run_in_executor."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import uvloop
from arq import create_pool, func
from arq.connections import RedisSettings

from benchmarks.adapters.jobs import URL, crash_on_loop, start

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
pool = ThreadPoolExecutor()
settings = RedisSettings.from_dsn(URL)


async def run_async(ctx, number):
    start(number)


async def run_thread(ctx, number):
    await asyncio.get_running_loop().run_in_executor(pool, partial(start, number))


async def run_payload(ctx, number, payload):
    start(number)


async def run_crash(ctx, number):
    await crash_on_loop(number)


TASKS = {"async": "run_async", "thread": "run_thread", "payload": "run_payload", "crash": "run_crash"}


class WorkerSettings:
    functions = (run_async, run_thread, run_payload, func(run_crash, timeout=7_200))
    redis_settings = settings
    max_jobs = 500
    poll_delay = 0.02
    keep_result = 0
    log_results = False


class Sender:
    kinds = tuple(TASKS)

    async def open(self):
        self.redis = await create_pool(settings)

    async def send(self, job):
        await self.redis.enqueue_job(TASKS[job.kind], *job.arguments)

    async def send_many(self, jobs):
        for first in range(0, len(jobs), 50):
            await asyncio.gather(*map(self.send, jobs[first : first + 50]))

    async def send_later(self, job, seconds):
        await self.redis.enqueue_job(TASKS[job.kind], *job.arguments, _defer_by=seconds)

    async def close(self):
        await self.redis.aclose()
