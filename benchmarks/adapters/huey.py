"""Huey: `def` jobs only."""

from huey import RedisHuey

from benchmarks.adapters.jobs import URL, crash_in_thread, start

huey = RedisHuey("bench", url=URL, results=False, blocking=True)


@huey.task()
def run_thread(number):
    start(number)


@huey.task()
def run_payload(number, payload):
    start(number)


@huey.task()
def run_crash(number):
    crash_in_thread(number)


TASKS = {"thread": run_thread, "payload": run_payload, "crash": run_crash}


class Sender:
    kinds = tuple(TASKS)

    def send_sync(self, job):
        TASKS[job.kind](*job.arguments)

    async def send_many(self, jobs):
        for job in jobs:
            TASKS[job.kind](*job.arguments)

    async def send_later(self, job, seconds):
        TASKS[job.kind].schedule(job.arguments, delay=seconds)
