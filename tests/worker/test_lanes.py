"""Lanes with real processes: exclusive when workers are killed, not in the way of others, within limits and rates."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.engine.read.views import Event
from tests.app_helpers import eventually
from tests.worker.harness import Crew, pause, tree

MOMENT = 0.005  # seconds
ENDS = ("complete", "retry", "bury", "release", "snooze", "crash", "reap", "retire")


def sized(default: Any, full: Any) -> pytest.MarkDecorator:
    """A size for every day, and the whole."""
    whole = pytest.param(full, marks=[pytest.mark.long, pytest.mark.timeout(1200)])
    return pytest.mark.parametrize("size", [default, whole], ids=str)


def violations(crew: Crew) -> list[Any]:
    """What the registers outside of the server had to say."""
    return [line for what in ("overlap", "older", "overtaken") for line in crew.lines(what)]


async def ms_of_first_and_last(crew: Crew, jobs: Iterable[Any]) -> tuple[int, int]:
    """When the first of these started and the last one ended, by the server's clock."""
    headers = [await crew.header(job) for job in jobs]
    return min(header.started for header in headers), max(header.since for header in headers)


async def kill_children(crew: Crew, supervisor_pid: int, every: float) -> None:
    """A child that runs jobs is killed again and again."""
    while True:
        await pause(every)
        names = [node.worker.split("-")[-2] for node in await crew.nodes()]
        if children := [pid for pid in tree(supervisor_pid) if str(pid) in names]:
            os.kill(random.choice(children), signal.SIGKILL)


async def a_plain_loop(folder: Path, many: int) -> float:
    """Seconds for the sleeps of as many jobs, with nothing around them but a write."""
    file = os.open(folder / "plain", os.O_RDWR | os.O_CREAT)
    begin = time.monotonic()
    for i in range(many):
        os.pwrite(file, b"%20d" % i, 0)
        await asyncio.sleep(MOMENT)
    os.close(file)
    return time.monotonic() - begin


# Locks


@sized(400, 10_000)
async def test_jobs_of_one_lock_never_meet_though_children_are_killed(crew: Crew, size: int) -> None:
    supervisor = await crew.started("-p", "2", "-c", "4", children=2)
    before = await a_plain_loop(crew.folder, 200)
    killer = asyncio.create_task(kill_children(crew, supervisor.pid, every=2.0))
    jobs = await crew.app.enqueue_many(crew.tasks.guarded.call("one", MOMENT) for _ in range(size))
    await crew.all_in("done", within=15 + size / 20)
    killer.cancel()
    first, last = await ms_of_first_and_last(crew, jobs)
    rate = size / (last - first) * 1000
    plain = 400 / (before + await a_plain_loop(crew.folder, 200))
    killed = len({event.job for event in await crew.events("reap")})
    print(f"{rate:.0f} jobs/s on one lock, {plain:.0f} in a plain loop: {rate / plain:.0%}; {killed} taken back")
    assert violations(crew) == []
    assert set(crew.count()) == {job.id for job in jobs}


@sized(300, 10_000)
async def test_two_locks_in_either_order_never_deadlock(crew: Crew, size: int) -> None:
    await crew.started("-p", "2", "-c", "20", children=2)
    orders = (("a", "b"), ("b", "a"))
    jobs = await crew.app.enqueue_many(
        crew.tasks.guarded.using(lock=orders[i % 2]).call("both", 0.0) for i in range(size)
    )
    await crew.all_in("done", within=30 + size / 20)
    assert violations(crew) == []
    assert crew.count() == dict.fromkeys((job.id for job in jobs), 1)


@sized((10, 40), (50, 200))
async def test_every_lock_is_exclusive_across_queues_and_tasks(crew: Crew, size: tuple[int, int]) -> None:
    locks, each = size
    await crew.started("-p", "4", "-c", "20", children=4)
    calls = [
        kind.using(queue=queue).call(f"lock-{lock}", 0.001)
        for _ in range(each // 4)
        for kind, queue in ((crew.tasks.guarded, "a"), (crew.tasks.guarded, "b"), (crew.tasks.guarded_too, "c")) * 2
        for lock in range(locks)
    ][: locks * each]
    random.shuffle(calls)
    jobs = await crew.app.enqueue_many(calls)
    await crew.all_in("done", within=30 + locks * each / 20)
    assert violations(crew) == []
    assert crew.count() == dict.fromkeys((job.id for job in jobs), 1)
    assert len({line.pid for line in crew.lines()}) == 4


@sized(2_000, 10_000)
async def test_jobs_without_a_lock_start_at_once_behind_many_that_wait_for_one(crew: Crew, size: int) -> None:
    await crew.started("-c", "20")
    alone = await delays(crew)
    await crew.tasks.until.using(lock="held").enqueue("go")
    await eventually(lambda: crew.count()[crew.lines()[-1].job] == 1 and len(crew.lines()) == 101)
    await crew.app.enqueue_many(crew.tasks.nothing.using(lock="held").call() for _ in range(size))
    behind = await delays(crew)
    assert (await crew.app.lock("held").status()).waiting == size
    p95 = [sorted(medians)[94] * 1000 for medians in (alone, behind)]
    print(f"p95 of the start: {p95[0]:.1f} ms, behind {size} {p95[1]:.1f} ms: {p95[1] / p95[0]:.1f} times that")
    crew.let_end("go")
    await crew.all_in("done", within=60 + size / 100)


async def delays(crew: Crew) -> list[float]:
    """Seconds from the call of enqueue to the first line of the function, of 100 jobs one after the other."""
    sent = {}
    for _ in range(100):
        at = time.time()
        job = await crew.tasks.quick.enqueue()
        sent[job.id] = at
        await job.result(timeout=30)
    started = {line.job: line.at for line in crew.lines()}
    return [started[job] - at for job, at in sent.items()]


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_how_fast_a_thousand_locks_are_drained(crew: Crew) -> None:
    """All of them are; the figure is printed, and the benchmarks have the goal."""
    rates = []
    for _ in range(2):
        for locks in (0, 1_000):
            rates.append(await drained(crew, 20_000, locks))
            print(f"{rates[-1]:.0f} jobs/s with {locks} locks")
    print(f"with a thousand locks {(rates[1] + rates[3]) / (rates[0] + rates[2]):.0%} of the rate without")


async def drained(crew: Crew, many: int, locks: int) -> float:
    nothing = crew.tasks.nothing
    calls = ((nothing.using(lock=f"lock-{i % locks}") if locks else nothing).call() for i in range(many))
    jobs = await crew.app.enqueue_many(calls)
    worker = await crew.started("-p", "2", "-c", "100", children=2)
    await crew.all_in("done", within=120)
    first, last = await ms_of_first_and_last(crew, (*jobs[:500], *jobs[-2000:]))
    assert await crew.stop(worker) == 0
    await eventually(lambda: _is_empty(crew), within=30)
    return many / (last - first) * 1000


async def _is_empty(crew: Crew) -> bool:
    return not await crew.nodes()


async def test_a_job_without_a_lock_runs_on_another_worker_while_two_of_one_lock_take_turns(crew: Crew) -> None:
    for _ in range(2):
        await crew.started("-c", "1")
    until = crew.tasks.until
    first = await until.using(lock="t").enqueue("first")
    second = await until.enqueue("second")
    third = await until.using(lock="t").enqueue("third")
    lines = await crew.until_started(2)
    assert {line.job for line in lines} == {first.id, second.id}
    assert (await third.status()).state == "held"
    assert first.id in await third.explain()
    crew.let_end("first")
    pid = await first.result(timeout=20)
    await crew.until_started(3)
    assert (await second.status()).state == "running"
    crew.let_end("third")
    assert await third.result(timeout=20) == pid
    assert (await second.status()).state == "running"
    crew.let_end("second")
    assert await second.result(timeout=20) != pid


async def test_the_end_of_a_lock_wakes_an_idle_worker_of_another_queue(crew: Crew) -> None:
    await crew.started("-c", "1", "-q", "left")
    await crew.started("-c", "1", "-q", "right")
    until = crew.tasks.until
    woken = []
    for turn in range(4):
        one, other = ("left", "right") if turn % 2 else ("right", "left")
        first = await until.using(lock="t", queue=one).enqueue(f"{turn}-first")
        await crew.until_started(2 * turn + 1)
        then = await until.using(lock="t", queue=other).enqueue(f"{turn}-then")
        await pause(0.2)
        assert (await then.status()).state == "held"
        crew.let_end(f"{turn}-first")
        crew.let_end(f"{turn}-then")
        pids = await first.result(timeout=20), await then.result(timeout=20)
        assert pids[0] != pids[1]
        woken.append((await crew.header(then)).started - (await crew.header(first)).since)
    print(f"an idle worker started what waited for the lock after {woken} ms")
    assert sorted(woken)[1] < 3_000  # a worker that nobody wakes looks by itself after four seconds


# Limits


@sized(200, 1_200)
async def test_no_job_starts_while_as_many_run_as_the_limit_allows(crew: Crew, size: int) -> None:
    supervisor = await crew.started("-p", "3", "-c", "10", children=3)
    jobs = await crew.app.enqueue_many(
        crew.tasks.shared.using(queue=random.choice("ab")).call(random.random() * 0.03) for _ in range(size)
    )
    killer = asyncio.create_task(kill_children(crew, supervisor.pid, every=1.5))
    limits = []
    deadline = time.monotonic() + size / 20
    while not await crew._are_in(("done", "dead", "cancelled")) and time.monotonic() < deadline:
        limits.append(await set_limit(crew, random.choice((0, 1, 2, 3, 5, 6, None))))
        if random.random() < 0.5:
            await random.choice(jobs).cancel()
        await pause(random.random() * 0.2)
    killer.cancel()
    limits.append(await set_limit(crew, 6))
    await crew.all_in("done", "dead", "cancelled", within=60)
    events = await crew.events("enqueue", "lease", "tune", *ENDS)
    assert sum(event.verb == "enqueue" for event in events) == size  # the stream has everything
    most = replay(events, limits)
    ended = Counter([(await crew.header(job)).state for job in jobs])
    verbs = dict(Counter(event.verb for event in events))
    print(f"at most {most} at once, {len(limits)} limits; {verbs}; ended {dict(ended)}")
    assert (await crew.app.lane("shared").status()).in_use == 0


async def set_limit(crew: Crew, limit: int | None) -> int:
    """Another limit, or the code's again; what counts from then on."""
    lane = crew.app.lane("shared")
    if limit is None:
        await lane.reset()
        return 4
    await lane.set(limit=limit)
    return limit


def replay(events: list[Event], limits: list[int]) -> int:
    """The most that ever ran at once, if none started while the limit was reached, in the server's order."""
    running: set[str] = set()
    limit, most, changes = 4, 0, iter(limits)
    for event in events:
        if event.verb == "tune":
            limit = next(changes)
        elif event.verb == "lease":
            assert len(running) < limit, f"{event} with {limit} allowed: {running}"
            assert event.job not in running
            running.add(event.job)
        elif event.verb in ENDS:
            running.remove(event.job)
        most = max(most, len(running))
    assert next(changes, None) is None
    assert not running
    return most


# Rates and turns


async def test_three_workers_together_keep_a_rate(crew: Crew) -> None:
    for _ in range(3):
        await crew.started("-c", "20")
    jobs = await crew.app.enqueue_many(crew.tasks.rated.call() for _ in range(1_000))
    await crew.all_in("done", within=60)
    starts = sorted([(await crew.header(job)).started for job in jobs])
    rate, burst = 0.2, 10
    lowest, above = 0.0, 0.0  # how far the starts of any window are above the rate, at most
    for i, at in enumerate(starts):
        lowest = min(lowest, i - rate * (at - starts[0]))
        above = max(above, i + 1 - rate * (at - starts[0]) - lowest)
    reached = (len(starts) - burst) / (starts[-1] - starts[0]) / rate
    print(f"{reached:.0%} of the rate; at most {above:.2f} above it in any window, of {burst} allowed")
    assert above <= burst + 0.001
    assert reached >= 0.5


@sized(5_000, 200_000)
async def test_a_small_tenant_waits_for_at_most_eight_jobs_of_a_big_one(crew: Crew, size: int) -> None:
    await crew.app.enqueue_many(crew.tasks.of_tenant.call("big") for _ in range(size))
    worker = await crew.started("-c", "1")
    await eventually(lambda: _have_run(crew, 200), within=30)
    job = await crew.tasks.of_tenant.enqueue("small")
    await job.result(timeout=30)
    events = await crew.events("enqueue", "lease")
    mine = [i for i, event in enumerate(events) if event.job == job.id]
    between = [event for event in events[mine[0] : mine[1]] if event.verb == "lease"]
    print(f"{len(between)} jobs of the big tenant, which has {size}, started before the one of the small")
    assert len(between) <= 8
    await crew.app.lane("tenant:big").pause()
    assert await crew.stop(worker) == 0


async def _have_run(crew: Crew, many: int) -> bool:
    counts = await crew.app.client.views.counts()
    return sum(row.get("done", 0) for row in counts.values()) >= many
