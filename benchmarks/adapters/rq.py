"""RQ: `def` jobs only."""

from datetime import timedelta

from redis import Redis
from rq import Queue

from benchmarks.adapters.jobs import URL, crash_in_thread, start


def run_thread(number):
    start(number)


def run_payload(number, payload):
    start(number)


TASKS = {"thread": run_thread, "payload": run_payload, "crash": crash_in_thread}


class Sender:
    kinds = tuple(TASKS)

    def __init__(self):
        self.queue = Queue("bench", connection=Redis.from_url(URL))

    def send_sync(self, job):
        self.queue.enqueue(TASKS[job.kind], *job.arguments, result_ttl=0)

    async def send_many(self, jobs):
        for first in range(0, len(jobs), 1_000):
            page = jobs[first : first + 1_000]
            self.queue.enqueue_many([Queue.prepare_data(TASKS[job.kind], job.arguments, result_ttl=0) for job in page])

    async def send_later(self, job, seconds):
        self.queue.enqueue_in(timedelta(seconds=seconds), TASKS[job.kind], *job.arguments, result_ttl=0)
