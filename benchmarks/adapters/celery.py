"""Celery: `def` jobs only; a job is acknowledged late where it must survive its worker."""

from celery import Celery

from benchmarks.adapters.jobs import URL, crash_in_thread, start

app = Celery("bench", broker=URL)
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_default_queue="bench",
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    worker_prefetch_multiplier=100,
    worker_send_task_events=False,
)


@app.task
def run_thread(number):
    start(number)


@app.task
def run_payload(number, payload):
    start(number)


@app.task(acks_late=True, reject_on_worker_lost=True)
def run_crash(number):
    crash_in_thread(number)


TASKS = {"thread": run_thread, "payload": run_payload, "crash": run_crash}


class Sender:
    kinds = tuple(TASKS)

    def send_sync(self, job):
        TASKS[job.kind].apply_async(job.arguments)

    async def send_many(self, jobs):
        with app.producer_or_acquire() as producer:
            for job in jobs:
                TASKS[job.kind].apply_async(job.arguments, producer=producer)

    async def send_later(self, job, seconds):
        TASKS[job.kind].apply_async(job.arguments, countdown=seconds)
