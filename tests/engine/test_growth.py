"""The time of each script on the server is the same with a thousand and with a million jobs."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from penstock.engine.engine import Engine
from penstock.engine.repair.audit import audit
from tests.conftest import namespace, open_engine
from tests.costs import BIG, PAGE, ROUNDS, SMALL, Meter, grown, in_turns, slow_each_time
from tests.engine.factories import LIFE, TestWorker, call_of, new_job
from tests.servers import Server
from tests.stopwatch import Stopwatch

LANES = 100_000


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_script_takes_less_than_twice_as_long_with_a_million_jobs_as_with_a_thousand(
    watched_server: Server, watched_engine: Engine, stopwatch: Stopwatch
) -> None:
    engine, few = watched_engine, open_engine(watched_server.url, namespace())
    worker, other = await TestWorker(engine).register(), await TestWorker(few).register()
    await _fill(few, other, SMALL)
    await _fill(engine, worker, BIG)
    small, big = await in_turns((few, partial(_measure, few, other)), (engine, partial(_measure, engine, worker)))
    await few.script_client.endpoint.aclose()

    async def fill_again() -> None:
        await _fill(engine, await TestWorker(engine).register(), BIG)

    assert (grown(small, big), await slow_each_time(watched_server, engine, stopwatch, fill_again)) == ({}, [])
    assert await audit(engine) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_script_takes_less_than_twice_as_long_with_a_million_held_jobs_in_100_000_lanes(
    watched_server: Server, watched_engine: Engine, stopwatch: Stopwatch
) -> None:
    engine, few = watched_engine, open_engine(watched_server.url, namespace())
    worker, other = await TestWorker(engine).register(), await TestWorker(few).register()
    await _hold(few, other, 0, SMALL // 10)
    await _hold(engine, worker, 0, LANES)
    sides = (few, partial(_measure_lanes, few, other)), (engine, partial(_measure_lanes, engine, worker))
    small, big = await in_turns(*sides)
    await few.script_client.endpoint.aclose()

    async def hold_again() -> None:
        await _hold(engine, await TestWorker(engine).register(), 0, LANES)

    assert (grown(small, big), await slow_each_time(watched_server, engine, stopwatch, hold_again)) == ({}, [])
    assert await audit(engine) == []


async def _hold(engine: Engine, worker: TestWorker, first: int, last: int) -> None:
    """Ten jobs of each of these locks wait behind one that runs; the queue is one that nobody else serves."""
    for start in range(first, last, 10):
        locks = [f"lock:{n}" for n in range(start, start + 10)]
        await engine.enqueue([new_job(queue="busy", lanes=[lock]) for lock in locks])
        await _lease(engine, worker, 10, "busy")
        await engine.enqueue([new_job(queue="busy", lanes=[lock]) for lock in locks for _ in range(10)])


async def _lease(engine: Engine, worker: TestWorker, want: int, queue: str) -> list[tuple[str, int]]:
    worker.number += 1
    call = engine.lease(worker.name, worker.number, queues=(queue,), want=want, answered=worker.number - 1)
    return [(lease.id, call_of(lease)) for lease in (await call).leases]


async def _measure_lanes(engine: Engine, worker: TestWorker, meter: Meter) -> None:
    """Each page takes jobs of locks of its own, each with others that wait behind it."""

    def page() -> list[Any]:
        return [new_job(queue="quick", lanes=[f"lock:quick{n}"]) for n in range(PAGE)]

    async def settled(verb: str, settle: Callable[[list[tuple[str, int]]], Awaitable[Any]]) -> None:
        for _ in range(ROUNDS):
            held = await _lease(engine, worker, PAGE, "quick")
            assert len(held) == PAGE
            await meter.once(verb, settle(held))

    timed = meter.timed
    fresh = [page() for _ in range(ROUNDS)]
    await timed("enqueue", lambda i: engine.enqueue(fresh[i]))
    await settled("release", lambda held: engine.release(worker.name, held))
    await settled("retry", lambda held: engine.retry(worker.name, [(*lease, 0, "error", "{}") for lease in held]))
    for _ in range(ROUNDS):
        taken = await meter.once("lease", _lease(engine, worker, PAGE, "quick"))
        await meter.once("complete", engine.complete(worker.name, [(*lease, b"") for lease in taken]))
    waiting = [[new_job(queue="busy", lanes=[f"lock:{n}"]) for n in range(PAGE)] for _ in range(ROUNDS)]
    await timed("hold", lambda i: engine.enqueue(waiting[i]))
    await timed("cancel", lambda i: engine.cancel([job.id for job in waiting[i]]))
    await timed("tune", lambda i: engine.tune(f"lock:{i}", limit=1))
    await timed("untune", lambda i: engine.tune(f"lock:{i}", limit=-1))
    await timed("reconcile", lambda _: engine.reconcile("jobs", 0, PAGE))


async def _fill(engine: Engine, worker: TestWorker, number: int) -> None:
    """Jobs in every state: most of them ready, with priorities, unique keys and expiries, the rest spread."""
    for start in range(0, number, 100):
        jobs = [
            new_job(
                queue=f"q{i % 3}", priority=i % 100, due=3_600_000 * (i % 10 == 0), expires=7_100_000 * (i % 5 == 0)
            )
            for i in range(start, min(start + 100, number))
        ]
        await engine.enqueue(jobs)
    for _ in range(number // 12_500 + 1):
        leases = await worker.lease(100)
        half = len(leases) // 2
        await engine.complete(worker.name, [(lease.id, call_of(lease), b"result") for lease in leases[:half]])
        await engine.bury(worker.name, [(lease.id, call_of(lease), "failed", "{}") for lease in leases[half:]])


async def _measure(engine: Engine, worker: TestWorker, meter: Meter) -> None:
    """On pages of the same size."""
    timed = meter.timed

    async def held() -> list[list[tuple[str, int]]]:
        for _ in range(ROUNDS):
            await engine.enqueue([new_job(priority=0, queue="q0") for _ in range(PAGE)])
        pages = [await worker.lease(PAGE) for _ in range(ROUNDS)]
        return [[(job.id, call_of(job)) for job in page] for page in pages]

    fresh = [[new_job(priority=0, queue="q0") for _ in range(PAGE)] for _ in range(ROUNDS)]
    await timed("enqueue", lambda i: engine.enqueue(fresh[i]))
    later = [[new_job(queue="q1", due=1) for _ in range(PAGE)] for _ in range(ROUNDS)]
    for page in later:
        await engine.enqueue(page)
    await timed("promote", lambda _: engine.promote(PAGE))
    pages = await timed("lease", lambda _: worker.lease(PAGE))
    taken = [[(job.id, call_of(job)) for job in page] for page in pages]
    await timed("complete", lambda i: engine.complete(worker.name, [(*lease, b"result") for lease in taken[i]]))
    taken = await held()
    await timed(
        "retry", lambda i: engine.retry(worker.name, [(*lease, 3_600_000, "error", "{}") for lease in taken[i]])
    )
    taken = await held()
    await timed("bury", lambda i: engine.bury(worker.name, [(*lease, "failed", "{}") for lease in taken[i]]))
    buried = taken
    await timed("revive", lambda i: engine.revive([job_id for job_id, _ in buried[i]]))
    taken = await held()
    await timed("snooze", lambda i: engine.snooze(worker.name, [(*lease, 3_600_000, "later") for lease in taken[i]]))
    taken = await held()
    await timed("release", lambda i: engine.release(worker.name, taken[i]))
    await timed("cancel", lambda i: engine.cancel([job_id for job_id, _ in taken[i]]))
    await timed("renew", lambda _: engine.renew(LIFE, [worker.name]))
    await timed("expire", lambda _: engine.expire(PAGE))
    await timed("prune", lambda _: engine.prune(limit=PAGE))
    victims = [await TestWorker(engine).register() for _ in range(ROUNDS)]
    for victim in victims:
        await engine.enqueue([new_job(priority=0, queue="q0") for _ in range(PAGE)])
        await victim.lease(PAGE)
    await timed("reap", lambda i: engine.reap_worker(victims[i].name, [], LIFE))
    await timed("reconcile", lambda _: engine.reconcile("jobs", 0, PAGE))
    await timed("progress", lambda _: engine.progress(worker.name, "nothing", 1, "[]"))
