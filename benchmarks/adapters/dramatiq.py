"""Dramatiq: `def` jobs in threads, `async def` jobs through its AsyncIO middleware."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AsyncIO

from benchmarks.adapters.jobs import URL, crash_in_thread, start

broker = RedisBroker(url=URL)
broker.add_middleware(AsyncIO())
dramatiq.set_broker(broker)


@dramatiq.actor
async def run_async(number):
    start(number)


@dramatiq.actor
def run_thread(number):
    start(number)


@dramatiq.actor
def run_payload(number, payload):
    start(number)


@dramatiq.actor(time_limit=7_200_000)
def run_crash(number):
    crash_in_thread(number)


TASKS = {"async": run_async, "thread": run_thread, "payload": run_payload, "crash": run_crash}


class Sender:
    kinds = tuple(TASKS)

    def send_sync(self, job):
        TASKS[job.kind].send(*job.arguments)

    async def send_many(self, jobs):
        for job in jobs:
            TASKS[job.kind].send(*job.arguments)

    async def send_later(self, job, seconds):
        TASKS[job.kind].send_with_options(args=job.arguments, delay=round(seconds * 1_000))
