"""streaQ."""

from datetime import timedelta

from streaq import Worker

from benchmarks.adapters.jobs import URL, crash_on_loop, start

worker = Worker(redis_url=URL, queue_name="bench", concurrency=500, anyio_kwargs={"use_uvloop": True})


@worker.task(ttl=0, silent=True)
async def run_async(number):
    start(number)


@worker.task(ttl=0, silent=True)
def run_thread(number):
    start(number)


@worker.task(ttl=0, silent=True)
async def run_payload(number, payload):
    start(number)


@worker.task(ttl=0, silent=True)
async def run_crash(number):
    await crash_on_loop(number)


TASKS = {"async": run_async, "thread": run_thread, "payload": run_payload, "crash": run_crash}


class Sender:
    kinds = tuple(TASKS)

    async def open(self):
        await worker.__aenter__()

    async def send(self, job):
        await TASKS[job.kind].enqueue(*job.arguments)

    async def send_many(self, jobs):
        for first in range(0, len(jobs), 1_000):
            await worker.enqueue_many([TASKS[job.kind].enqueue(*job.arguments) for job in jobs[first : first + 1_000]])

    async def send_later(self, job, seconds):
        await TASKS[job.kind].enqueue(*job.arguments).start(delay=timedelta(seconds=seconds))
