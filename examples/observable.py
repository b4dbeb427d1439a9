"""A queue with retries that is seen as an observable stream.

    pip install 'penstock[rx]'
    python examples/observable.py

What was wanted: jobs as an Observable. One that fails comes again 2·n seconds after its n-th failure; after so many
failures it is discarded. All that is due is popped by one atomic script.

How Penstock does it: `rx.stream(queue)` is an Observable of leases. Leaving a lease's block completes its job, an
exception fails it: the engine puts it off by the back-off of its task, and buries it after the last try. What a
subscriber has not settled when it dies goes back, so nothing is lost on the way. `rx.events(app)` is an Observable of
all that happens. Seconds are scaled down to tenths here, so that you do not wait.
"""

import asyncio
import time
from contextlib import suppress

from reactivex import operators as ops

from penstock import Backoff, Event, Penstock
from penstock.contrib import rx
from penstock.worker.queue_stream import QueueLease

SECOND = 0.1
PAGES = {"/fine": 0, "/shaky": 2, "/broken": 99}  #: page → how often it fails

app = Penstock("observable")
clock: dict[str, float] = {}  #: when the first word was said


@app.task(name="fetch", queue="pages", retries=3, backoff=Backoff("linear", base=2 * SECOND, jitter=False))
def fetch(page: str) -> None:
    """Its jobs are taken by hand, so only its options count."""


def say(text: str) -> None:
    begun = clock.setdefault("begun", time.monotonic())
    print(f"{(time.monotonic() - begun) / SECOND:5.1f} s  {text}", flush=True)


async def process(lease: QueueLease) -> None:
    """Whatever is raised goes to the engine, which decides what follows."""
    with suppress(ConnectionError):
        async with lease as job:
            page = job.arguments["page"]
            say(f"received {page}, attempt {job.attempt}")
            if job.attempt <= PAGES[page]:
                raise ConnectionError(page)


async def main() -> None:
    ended, tasks, pages = asyncio.Event(), asyncio.TaskGroup(), dict[str, str]()

    def tell(event: Event) -> None:
        what = {"complete": "is done", "retry": f"failed, again after {2 * event.attempt} s", "bury": "is given up"}
        say(f"    {pages[event.job]} {what[event.kind]}")

    def is_ours(event: Event) -> bool:
        return event.job in pages

    def is_end(event: Event) -> bool:
        return event.kind != "retry"

    def take(lease: QueueLease) -> None:
        tasks.create_task(process(lease))

    async with app, tasks:
        pages |= {(await fetch.enqueue(page)).id: page for page in PAGES}
        events = rx.events(app, queue="pages", since=60, kinds=["complete", "retry", "bury"])
        shown = events.pipe(ops.filter(is_ours), ops.do_action(tell), ops.filter(is_end), ops.take(len(PAGES)))
        shown.subscribe(on_completed=ended.set)
        subscription = rx.stream(app.queue("pages"), limit=2).subscribe(on_next=take)
        await asyncio.wait_for(ended.wait(), 60)
        subscription.dispose()


if __name__ == "__main__":
    asyncio.run(main())
