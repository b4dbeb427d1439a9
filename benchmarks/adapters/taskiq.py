"""taskiq on its Redis stream broker; delayed jobs go through its scheduler process."""

import asyncio
from datetime import UTC, datetime, timedelta

from taskiq import TaskiqScheduler
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from benchmarks.adapters.jobs import URL, crash_on_loop, start

broker = RedisStreamBroker(URL, queue_name="bench", consumer_id="0")
source = ListRedisScheduleSource(URL)
scheduler = TaskiqScheduler(broker, [source])


@broker.task
async def run_async(number):
    start(number)


@broker.task
def run_thread(number):
    start(number)


@broker.task
async def run_payload(number, payload):
    start(number)


@broker.task
async def run_crash(number):
    await crash_on_loop(number)


TASKS = {"async": run_async, "thread": run_thread, "payload": run_payload, "crash": run_crash}


class Sender:
    kinds = tuple(TASKS)

    async def open(self):
        await broker.startup()
        await source.startup()

    async def send(self, job):
        await TASKS[job.kind].kiq(*job.arguments)

    async def send_many(self, jobs):
        for first in range(0, len(jobs), 50):
            await asyncio.gather(*map(self.send, jobs[first : first + 50]))

    async def send_later(self, job, seconds):
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        await TASKS[job.kind].schedule_by_time(source, at, *job.arguments)

    async def close(self):
        await source.shutdown()
        await broker.shutdown()
