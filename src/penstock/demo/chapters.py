"""The chapters of the demo except the last: each shows one feature and measures it."""

import asyncio
import itertools
import statistics
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any, Final

from penstock.api.batch import Batch
from penstock.api.job import Job, JobStatus
from penstock.demo.screen import COLOURS, Bar, Report, bad, chapter, good, say, strip, timeline
from penstock.demo.tasks import Span, app, debit, flaky, load, ordinary, report, resize
from penstock.errors import JobFailed, PenstockError

RESULT_TIMEOUT: Final = 30.0  #: seconds for a result that takes one on an idle machine
ACCOUNTS: Final = ("ann", "bob", "cho")
JOBS: Final = 2_000
PRIORITIES: Final = (0, 30, 60, 90)
DELAYS: Final = (0.3, 0.45, 0.6, 0.75, 0.9)
FILES: Final = 5
PRODUCERS: Final = 20
MEMBERS: Final = 200
LIMIT: Final = 8


async def locks(measured: Report) -> None:
    await chapter(
        "1  Locks",
        'lock="account:{account}"',
        "Nine debits, sent at once: those of one account take turns, and hold up nobody else.",
    )
    accounts = [account for account in ACCOUNTS for _ in range(3)]
    jobs = await app.enqueue_many(debit.call(account, 0.4) for account in accounts)
    others = await app.enqueue_many(ordinary.call() for _ in range(100))
    began = monotonic()
    await _results(others)
    passed = monotonic() - began
    runs = sorted(zip(accounts, await _results(jobs), strict=True))
    timeline(runs, [COLOURS[ACCOUNTS.index(account)] for account, _ in runs])
    worst = max(max_overlap([span for name, span in runs if name == account]) for account in ACCOUNTS)
    good(f"100 other jobs passed them by in {passed * 1000:.0f} ms")
    measured.add("debits of one account at once, at most", str(worst))


async def priorities(measured: Report) -> None:
    await chapter(
        "2  Priorities",
        "priority=0 to 99",
        f"{JOBS:,} jobs, the least urgent sent first, to a queue that is paused; then it is let go.",
    )
    queue = app.queue("default")
    await queue.pause()
    urgency = [priority for priority in reversed(PRIORITIES) for _ in range(JOBS // len(PRIORITIES))]
    began = monotonic()
    jobs = await app.enqueue_many(ordinary.using(priority=priority).call() for priority in urgency)
    sent = monotonic() - began
    bar = Bar(JOBS)
    waiting = asyncio.gather(*(_counted(job, bar) for job in jobs))
    began = monotonic()
    await queue.resume()
    fences = await waiting
    drained = monotonic() - began
    started = [priority for _, priority in sorted(zip(fences, urgency, strict=True))]
    say(f"as they were sent   {_sample(urgency)}")
    say(f"as they started     {_sample(started)}")
    measured.add(f"{JOBS:,} jobs sent", f"{JOBS / sent:,.0f} a second")
    measured.add(f"{JOBS:,} jobs run by two processes", f"{JOBS / drained:,.0f} a second")
    measured.add("jobs that started before a more urgent one", str(_too_early(started)))


def _sample(order: Sequence[int]) -> str:
    """A sample of the priorities, each as a digit."""
    sample = order[:: len(order) // 56]
    colours = [COLOURS[PRIORITIES.index(priority)] for priority in sample]
    return strip([str(priority // 10) for priority in sample], colours)


def _too_early(started: Sequence[int]) -> int:
    # A job started too early if a more urgent one started after it.
    most_urgent_after = list(itertools.accumulate(reversed(started), min))[::-1]
    return sum(own > best for own, best in zip(started, most_urgent_after, strict=True))


async def delays(measured: Report) -> None:
    await chapter("3  Delays", 'delay="300ms"', "Nobody polls: a timer sleeps until the next job is due.")
    jobs = [await ordinary.using(delay=delay).enqueue() for delay in DELAYS]
    late = [_late(await _ended(job)) for job in jobs]
    say("due after     " + "".join(f"{delay * 1000:>5.0f} ms" for delay in DELAYS))
    say("started late  " + "".join(f"{ms:>5.0f} ms" for ms in late))
    measured.add(
        f"{len(late)} delayed jobs, late by the server's clock",
        f"{statistics.median(late):.0f} ms median, {max(late):.0f} ms worst",
    )


def _late(status: JobStatus) -> float:
    if status.started is None or status.due is None:
        raise PenstockError(f"job {status.id} has no times to compare")
    return (status.started - status.due).total_seconds() * 1000


async def retries(measured: Report) -> None:
    await chapter(
        "4  Retries",
        'retries=3, backoff=Backoff("exponential", base="200ms", jitter=False)',
        "A job that fails twice. Its worker is free for others meanwhile.",
    )
    job = await flaky.enqueue(2)
    result = await job.result(timeout=RESULT_TIMEOUT)
    status = await job.status()
    waits = _waits(status)
    for failure, wait in zip(status.attempts, waits, strict=True):
        bad(f"attempt {failure.number}: {failure.type}: {failure.message}; the next one came after {wait:.0f} ms")
    good(f"attempt {status.attempt}: {result}")
    measured.add("waits before a retry, asked for 200, 400 ms", f"{', '.join(f'{wait:.0f}' for wait in waits)} ms")


def _waits(status: JobStatus) -> list[float]:
    """Milliseconds from each failure to the start that followed it."""
    starts = [failure.started for failure in status.attempts[1:]] + [status.started or status.since]
    return [
        (start - failure.ended).total_seconds() * 1000 for failure, start in zip(status.attempts, starts, strict=True)
    ]


async def dead_letters(measured: Report, folder: Path) -> None:
    await chapter(
        "5  The dead letter",
        "await app.jobs(group=...).retry()",
        "Jobs whose tries are used up are kept, grouped by what they died of.",
    )
    jobs = await app.enqueue_many(load.call(str(folder), "stock.csv") for _ in range(FILES))
    for job in jobs:
        await _failure(job)
    (group,) = await app.dead_groups()
    bad(f"{group.count} jobs died of {group.type}: {group.message}")
    (folder / "stock.csv").write_text("three left")
    await app.jobs(group=group.group).retry()
    results = await _results(jobs)
    good(f"the file is put there, the group is run again: {len(results)} jobs found {results[0]!r}")
    measured.add("dead jobs, cause mended, run again, done", f"{len(results)} of {len(jobs)}")


async def _failure(job: Job[Any]) -> None:
    try:
        await job.result(timeout=RESULT_TIMEOUT)
    except JobFailed:
        return
    raise PenstockError(f"job {job.id} did not fail")


async def same_id(measured: Report) -> None:
    await chapter(
        "6  Sent twice, stored once",
        'id="order-4711"',
        f"{PRODUCERS} producers send the same id at the same moment.",
    )
    barrier = threading.Barrier(PRODUCERS)

    def produce() -> Job[int]:
        barrier.wait()
        return ordinary.using(id="order-4711").enqueue_sync()

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(PRODUCERS) as threads:
        jobs = await asyncio.gather(*(loop.run_in_executor(threads, produce) for _ in range(PRODUCERS)))
    status = await _ended(jobs[0])
    made = sum(job.created for job in jobs)
    good(f"{made} of them made the job, {len(jobs) - made} were told of it; it ran {_times(status.attempt)}")
    measured.add(f"jobs from {PRODUCERS} producers of one id", f"{made}, run {_times(status.attempt)}")


async def batch(measured: Report) -> None:
    await chapter(
        "7  A batch, streamed in",
        f'async with app.batch("pictures", limit={LIMIT}, then=report) as batch: await batch.add(...)',
        f"Members run while others are being added, at most {LIMIT} at once; then the report, once.",
    )
    bar = Bar(MEMBERS)
    bar.known = 0
    pictures = app.batch("pictures", limit=LIMIT, then=report)
    async with asyncio.TaskGroup() as group:
        await pictures.open()
        group.create_task(_add(pictures, bar))
        spans = [await _counted(job, bar) async for job in pictures.as_completed()]
    status = await pictures.wait(timeout=RESULT_TIMEOUT)
    result = await (await app.get_job(f"{status.id}@then-1")).result(timeout=RESULT_TIMEOUT)
    good(f"the report says: {result}")
    measured.add(f"batch of {MEMBERS}, limit {LIMIT}: members at once, at most", str(max_overlap(spans)))


async def _add(pictures: Batch, bar: Bar) -> None:
    """Add members slowly, as from a slow source."""
    async with pictures:
        for number in range(MEMBERS):
            await pictures.add(resize.call(number))
            bar.known += 1
            await asyncio.sleep(0.008)


async def _results(jobs: Sequence[Job[Any]]) -> list[Any]:
    return await asyncio.gather(*(job.result(timeout=RESULT_TIMEOUT) for job in jobs))


async def _counted(job: Job[Any], bar: Bar) -> Any:
    result = await job.result(timeout=RESULT_TIMEOUT)
    bar.step()
    return result


async def _ended(job: Job[Any]) -> JobStatus:
    await job.result(timeout=RESULT_TIMEOUT)
    return await job.status()


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def max_overlap(spans: Sequence[Span]) -> int:
    """The largest number of spans that overlap."""
    moments = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
    return max(itertools.accumulate(step for _, step in moments))
