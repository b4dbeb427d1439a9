"""Jobs that must not run at the same time, and workers that nobody idles for it.

    python examples/locking.py

What was wanted: a job may carry a lock, a free string. Two jobs with the same lock never run at once; a worker that
meets one whose lock is taken goes on with the next job. Workers without work sleep until there is some, and do not
poll.

How Penstock does it: `.using(lock="t")`. A job whose lock is taken is held aside by the engine, costs nobody anything,
and is shown to workers the moment the lock is free. Here two workers of one slot each get job 1 (lock t), job 2, and
job 3 (lock t): one of them runs 1 and then 3, the other one runs 2 meanwhile. Job 4 finds both of them asleep.
"""

import asyncio
import time

from penstock import Penstock, current_job

app = Penstock("locking")
clock: dict[str, float] = {}  #: when the first word was said
names: dict[str, str] = {}  #: a worker's own name → what we call it


@app.task(name="work")
async def work(job: int, seconds: float) -> float:
    """Takes a while, and tells when it began."""
    start, worker = time.monotonic(), names.get(current_job().worker, "a worker")
    say(f"{worker} begins job {job}")
    await asyncio.sleep(seconds)
    say(f"{worker} has done job {job}")
    return start


def say(text: str) -> None:
    begun = clock.setdefault("begun", time.monotonic())
    print(f"{time.monotonic() - begun:5.2f} s  {text}", flush=True)


async def main() -> None:
    async with app, app.worker(concurrency=1) as one, app.worker(concurrency=1) as two:
        names.update({one.name: "worker A", two.name: "worker B"})
        calls = [
            work.using(lock="t").call(1, 0.3),
            work.call(2, 1.5),
            work.using(lock="t").call(3, 0.3),
        ]
        jobs = await app.enqueue_many(calls)
        async for event in jobs[0].events():
            if event.kind == "lease":
                break
        say(f"job 3 waits: {await jobs[2].explain()}")
        for job in jobs:
            await job.result(timeout=60)

        say("both workers sleep")
        sent = time.monotonic()
        start = await (await work.enqueue(4, 0)).result(timeout=60)
        say(f"job 4 began {1000 * (start - sent):.1f} ms after it was sent")


if __name__ == "__main__":
    asyncio.run(main())
