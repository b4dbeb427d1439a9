"""The bare loop; what it does with a delay is an asyncio timer in this process, the yardstick of lateness."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from benchmarks.adapters.jobs import URL, start
from penstock.bench.bare import Bare

pool = ThreadPoolExecutor()


async def run_async(data):
    start(data[1][0])


async def run_thread(data):
    await asyncio.get_running_loop().run_in_executor(pool, start, data[1][0])


TASKS = {"async": run_async, "thread": run_thread, "payload": run_async}


async def run(data):
    await TASKS[data[0]](data)


async def work():
    await (await Bare(Redis.from_url(URL), "bench").open()).work(run)


class Sender:
    kinds = tuple(TASKS)

    async def open(self):
        self.client, self.blocking = Redis.from_url(URL), BlockingRedis.from_url(URL)
        self.bare = await Bare(self.client, "bench").open()

    async def send(self, job):
        await self.bare.put([[job.kind, job.arguments]])

    def send_sync(self, job):
        self.blocking.evalsha(*self.bare.putting([[job.kind, job.arguments]]))

    async def send_many(self, jobs):
        await self.bare.put([[job.kind, job.arguments] for job in jobs])

    async def send_later(self, job, seconds):
        asyncio.get_running_loop().call_later(seconds, start, job.number)

    async def close(self):
        await self.client.aclose()
