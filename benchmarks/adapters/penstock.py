"""Penstock, through its public API only; the audit is the one look inside."""

from benchmarks.adapters.jobs import URL, crash_on_loop, start
from penstock import BadOption, Penstock
from penstock.engine.repair.audit import audit

LOCKS = 1_000

app = Penstock("bench", url=URL)


@app.task(name="async")
async def run_async(number: int) -> None:
    start(number)


@app.task(name="thread")
def run_thread(number: int) -> None:
    start(number)


@app.task(name="payload")
async def run_payload(number: int, payload: str) -> None:
    start(number)


@app.task(name="crash")
async def run_crash(number: int) -> None:
    await crash_on_loop(number)


TASKS = {"async": run_async, "thread": run_thread, "payload": run_payload, "crash": run_crash}


def has_locks() -> bool:
    try:
        run_async.using(lock="one")
    except BadOption:
        return False
    return True


def call(job):
    if job.kind == "locked":
        return run_async.using(lock=f"lock:{job.number % LOCKS}").call(job.number)
    return TASKS[job.kind].call(*job.arguments)


class Sender:
    kinds = (
        *("async", "thread", "payload", "crash"),
        *(("locked",) if has_locks() else ()),
        *(("batch",) if hasattr(app, "batch") else ()),
    )

    async def send(self, job):
        await TASKS[job.kind].enqueue(*job.arguments)

    def send_sync(self, job):
        TASKS[job.kind].enqueue_sync(*job.arguments)

    async def send_many(self, jobs):
        if jobs[0].kind == "batch":
            async with app.batch("bench") as batch:
                await batch.add_many(run_async.call(job.number) for job in jobs)
        else:
            await app.enqueue_many(map(call, jobs))

    async def send_later(self, job, seconds):
        await TASKS[job.kind].using(delay=seconds).enqueue(*job.arguments)

    async def audit(self):
        return await audit(app.client.engine)

    async def close(self):
        await app.aclose()
