"""The application that workers run. What a job does is in its arguments; that it did it is in the ledger.

The environment says CHAOS_NAME, CHAOS_URL, CHAOS_LEDGER, CHAOS_GROUP (which start of which worker), and CHAOS_LACKS
(tasks that this code does not know).
"""

import asyncio
import contextlib
import datetime as dt
import os
import signal
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from penstock import BatchStatus, Bury, Penstock, Retry, Snooze, current_job
from penstock.api.context import JobContext
from tests.chaos.ledger import Ledger

GROUP = os.environ.get("CHAOS_GROUP", "")
BACKOFF = ["100ms", "300ms", "1s"]
ledger = Ledger(Path(os.environ.get("CHAOS_LEDGER", os.devnull)))


class Failed(Exception):
    """What a job was told to raise."""


@contextlib.contextmanager
def noted(job: JobContext) -> Iterator[JobContext]:
    """The start and the end of an attempt. A job in a process of its own does not know its worker: its parent."""
    worker = job.worker.rsplit("-", 2)
    holder = int(worker[1]) if len(worker) == 3 else os.getppid()
    who = {"id": job.id, "fence": job.fence, "group": GROUP, "pid": os.getpid(), "holder": holder}
    ledger.note("start", **who, attempt=job.attempt, crashes=job.lease.ready.crashes, worker=job.worker)
    try:
        yield job
    except BaseException as error:
        ledger.note("end", **who, how=type(error).__name__)
        raise
    ledger.note("end", **who, how="returned")


def act(job: JobContext, fails: int, how: str) -> int:
    """Fail as often as it was told, then return the fence, which tells whose result was kept."""
    ready = job.lease.ready
    if how == "snooze" and ready.releases < fails:
        raise Snooze("200ms")
    if how != "snooze" and job.attempt <= fails:
        raise {"raise": Failed("as it was told"), "retry": Retry("100ms"), "bury": Bury("as it was told")}[how]
    return job.fence


async def quick(seconds: float, fails: int = 0, how: str = "raise") -> int:
    with noted(current_job()) as job:
        await asyncio.sleep(seconds)
        return act(job, fails, how)


def thread(seconds: float, fails: int = 0, how: str = "raise") -> int:
    with noted(current_job()) as job:
        time.sleep(seconds)
        return act(job, fails, how)


def apart(seconds: float, fails: int = 0, how: str = "raise") -> int:
    with noted(current_job()) as job:
        time.sleep(seconds)
        return act(job, fails, how)


async def old(seconds: float, fails: int = 0, how: str = "raise") -> int:
    with noted(current_job()) as job:
        await asyncio.sleep(seconds)
        return act(job, fails, how)


class Deadly(dt.tzinfo):
    """A time in this zone kills its process when it is encoded."""

    def utcoffset(self, _when: dt.datetime | None) -> dt.timedelta:
        _die()
        return dt.timedelta()


async def returns_and_dies(after: float | None = None) -> Any:
    """Its process dies while its result is encoded; or `after` so many seconds, and it may be settled by then."""
    with noted(current_job()) as job:
        if after is None:
            return dt.datetime.now(Deadly())  # type: ignore[abstract]
        asyncio.get_running_loop().call_later(after, _die)
        return job.fence


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def told(status: BatchStatus) -> int:
    with noted(current_job()) as job:
        ledger.note(
            "then",
            id=job.id,
            batch=status.id,
            generation=status.generation,
            total=status.total,
            done=status.done,
            dead=status.dead,
            cancelled=status.cancelled,
        )
        return job.fence


async def tick() -> int:
    with noted(current_job()) as job:
        return job.fence


async def by_hand(seconds: float, fails: int = 0, how: str = "raise") -> int:
    raise NotImplementedError


def make_apps(name: str, url: str, lacks: Container[str] = ()) -> tuple[Penstock, Penstock]:
    """The app, and another for what streams take: it is stored apart, so that no worker takes it from them."""
    app = Penstock(name, url=url)
    for task in (quick, thread, told, old, returns_and_dies):
        if task.__name__ not in lacks:
            app.task(name=task.__name__, backoff=BACKOFF)(task)
    app.task(name="apart", backoff=BACKOFF, executor="process")(apart)
    app.every("1s", id="ticks")(app.task(name="tick", backoff=BACKOFF)(tick))
    hands = Penstock(f"{name}-hands", url=url, lease=os.environ.get("CHAOS_STREAM_LEASE", "2s"))
    hands.task(name="by_hand", backoff=BACKOFF)(by_hand)
    return app, hands


app, hands = make_apps(
    os.environ.get("CHAOS_NAME", "chaos"),
    os.environ.get("CHAOS_URL", "redis://127.0.0.1:1"),
    os.environ.get("CHAOS_LACKS", "").split(),
)
APART = app.tasks["apart"]  #: where a process of its own looks for it
