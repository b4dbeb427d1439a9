"""Any number of queues: a lease reads only queues that have jobs for it, and names without jobs are forgotten."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from penstock.engine.engine import PAGE, Engine, NewJob
from penstock.engine.read.views import Views
from penstock.engine.repair.audit import audit
from penstock.engine.repair.reconcile import reconcile
from tests.conftest import Clock
from tests.engine.factories import TestWorker, contents, enqueue, lane, new_job, raw

MANY: Final = 12_000  #: more names than a Lua function could be given at once


async def heads_of(engine: Engine) -> set[str]:
    """The queues that a worker of all queues would look at."""
    names = await (await raw(engine)).zrange(engine.keys("heads"), 0, -1)
    return {name.decode() for name in names if name}


async def known_to(engine: Engine) -> set[str]:
    return {name.decode() for name in await (await raw(engine)).hkeys(engine.keys("queues")) if name}


async def know(engine: Engine, number: int) -> None:
    """So many queues had jobs once."""
    client: Any = await raw(engine)
    for start in range(0, number, 4_000):
        names = {f"tenant-{n}": "" for n in range(start, min(start + 4_000, number))}
        await client.hset(engine.keys("queues"), mapping=names)


@asynccontextmanager
async def commands(engine: Engine) -> AsyncIterator[dict[str, int]]:
    """How often scripts call each command inside of this block."""
    client: Any = await raw(engine)
    calls: dict[str, int] = {}
    before = await client.info("commandstats")
    yield calls
    after = await client.info("commandstats")
    for name, row in after.items():
        calls[name.removeprefix("cmdstat_")] = row["calls"] - before.get(name, {"calls": 0})["calls"]


# What a lease looks at


async def test_a_lease_of_all_queues_works_with_many_thousand_names(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", queue="tenant-7"))
    await know(engine, MANY)
    async with commands(engine) as called:
        assert [lease.id for lease in await worker.lease(10)] == ["a"]
    assert (called["zrange"], called.get("hkeys", 0)) == (2, 0)  # `heads`, and one line
    assert await heads_of(engine) == set()


async def test_a_lease_opens_one_queue_more_than_it_takes_jobs(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    for start in range(0, 600, PAGE):
        await enqueue(engine, *(new_job(f"j{n:03}", queue=f"q{n}") for n in range(start, start + PAGE)))
    for want, at in ((1, 0), (5, 1), (50, 6), (PAGE, 56)):
        async with commands(engine) as called:
            leases = await worker.lease(want)
        assert [lease.id for lease in leases] == [f"j{n:03}" for n in range(at, at + want)]
        assert called["zrange"] <= want + 4  # those of `heads` are in it
    assert await heads_of(engine) == {f"q{n}" for n in range(156, 600)}


@pytest.mark.parametrize("seed", range(4))
async def test_jobs_of_all_queues_come_by_priority_and_then_in_the_order_of_their_arrival(
    engine: Engine, seed: int
) -> None:
    rng = random.Random(seed)
    worker, waiting = await TestWorker(engine).register(), list[tuple[int, int, str]]()
    for number in range(400):
        waiting.append((priority := rng.choice((3, 50, 50, 51)), number, f"j{number}"))
        await enqueue(engine, new_job(f"j{number}", queue=f"q{rng.randrange(60)}", priority=priority))
        if rng.random() < 0.1:
            waiting.sort()
            want = rng.choice((1, 2, 7, 30))
            leases = await worker.lease(want)
            assert [lease.id for lease in leases] == [name for _, _, name in waiting[:want]]
            del waiting[:want]
    assert await audit(engine) == []


async def test_a_queue_that_another_worker_emptied_is_opened_once(engine: Engine) -> None:
    names = [f"q{n}" for n in range(50)]
    worker, other = await TestWorker(engine).register(), await TestWorker(engine, queues=tuple(names)).register()
    await enqueue(engine, *(new_job(queue=name) for name in names))
    assert len(await other.lease(PAGE)) == len(names)
    await enqueue(engine, new_job("last", queue="last"))
    assert [lease.id for lease in await worker.lease()] == ["last"]
    assert await heads_of(engine) == set()


async def test_the_next_lease_goes_on_when_more_queues_are_out_of_date_than_one_opens(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await know(engine, 1_000)
    await enqueue(engine, new_job("a", queue="last", priority=90))
    client: Any = await raw(engine)
    await client.zadd(engine.keys("heads"), {f"tenant-{n}": n for n in range(1_000)})
    calls = 0
    while not (leases := await worker.lease(PAGE)):
        calls += 1
        assert calls < 4
    assert [lease.id for lease in leases] == ["a"]


async def test_jobs_that_do_not_fit_into_the_answer_are_the_first_of_the_next(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(f"j{n}", queue=f"q{n % 3}", payload=b"." * 400_000) for n in range(9)))
    order: list[str] = []
    while len(order) < 9:
        leased = await engine.lease(worker.name, len(order) + 1, want=PAGE, answered=0, room=1_000_000)
        order += [lease.id for lease in leased.leases]
        assert await audit(engine) == []
    assert order == [f"j{n}" for n in range(9)]


# Queues that are closed


async def test_a_paused_queue_is_dropped_by_the_lease_that_meets_it_and_comes_back(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", queue="paused"), new_job("b", queue="open"))
    await engine.pause("paused")
    assert [lease.id for lease in await worker.lease(5)] == ["b"]
    assert await heads_of(engine) == set()
    await engine.resume("paused")
    assert await heads_of(engine) == {"paused"}
    assert [lease.id for lease in await worker.lease(5)] == ["a"]


async def test_queues_at_their_limit_cost_a_lease_nothing_until_a_job_of_them_ends(engine: Engine) -> None:
    worker, names = await TestWorker(engine).register(), [f"q{n}" for n in range(40)]
    for name in names:
        await engine.cap(name, 1)
    await enqueue(engine, *(new_job(f"{turn}-{name}", queue=name) for turn in (1, 2) for name in names))
    first = await worker.lease(PAGE)
    assert [lease.id for lease in first] == [f"1-{name}" for name in names]
    assert await worker.lease(PAGE) == []
    assert await heads_of(engine) == set()
    async with commands(engine) as called:
        assert await worker.lease(PAGE) == []
    assert called["zrange"] == 1
    await worker.complete(first[3])
    await worker.retry(first[5])
    assert await heads_of(engine) == {"q3", "q5"}
    assert [lease.id for lease in await worker.lease(PAGE)] == ["2-q3", "2-q5"]
    await engine.cap("q9", -1)
    assert [lease.id for lease in await worker.lease(PAGE)] == ["2-q9"]


async def test_a_lane_shows_its_next_jobs_of_whatever_queue_they_are(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    few = lane("few", 30)
    await enqueue(engine, *(new_job(f"j{n:02}", queue=f"q{n % 5}", lanes=[few]) for n in range(60)))
    await engine.pause("q4")
    leases = [lease for _ in range(4) for lease in await worker.lease(PAGE)]
    assert len(leases) == 30
    assert {lease.header.queue for lease in leases} == {"q0", "q1", "q2", "q3"}


# Names that are forgotten


async def _ended(engine: Engine, clock: Clock, *queues: str) -> None:
    """Each of these queues had a job of which nothing is left but its tombstone."""
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(queue=queue, keep=0) for queue in queues))
    for lease in await worker.lease(len(queues)):
        await worker.complete(lease)
    clock.advance(1)


async def _forget(engine: Engine) -> None:
    while (await engine.prune())[1]:
        pass
    await engine.prune()


async def test_a_name_is_forgotten_with_its_last_job(engine: Engine, clock: Clock) -> None:
    await _ended(engine, clock, "a", "b")
    await enqueue(engine, new_job(queue="waits"), new_job(queue="later", due=60_000))
    await engine.pause("paused")
    assert await known_to(engine) == {"a", "b", "waits", "later", "paused"}
    await _forget(engine)
    assert await known_to(engine) == {"waits", "later", "paused"}
    assert not {name for name in (await contents(engine))["counts"] if name.startswith((b"a\x1f", b"b\x1f"))}
    assert "a" not in await Views(engine).counts()
    assert await reconcile(engine) == 0


async def test_queue_names_are_forgotten_in_small_steps(engine: Engine) -> None:
    await enqueue(engine, new_job(queue="tenant-3"))
    await know(engine, 3_000)
    assert await engine.prune() == (0, 1)
    steps = 1
    while await known_to(engine) != {"tenant-3"}:
        await engine.prune()
        steps += 1
        assert steps < 300
    assert steps > 5


Come = Callable[[Engine], Awaitable[object]]


def _jobs(*jobs: NewJob) -> Come:
    return lambda engine: engine.enqueue(jobs)


async def _pushed(engine: Engine) -> None:
    """To a worker that has nothing to do, and listens."""
    listener = (await raw(engine)).pubsub()
    try:
        await listener.ssubscribe(engine.keys.channel("rests"))
        assert await (await TestWorker(engine, "rests").register()).lease(push=True) == []
        (placed,) = await engine.enqueue([new_job(queue="a")])
        assert placed.state == "running"
    finally:
        await listener.aclose()


@pytest.mark.parametrize(
    "come",
    [
        _jobs(new_job(queue="a")),
        _jobs(new_job(queue="a"), new_job(queue="a")),
        _jobs(new_job(queue="a", due=5_000)),
        _jobs(new_job(queue="a", lanes=["lock:t"])),
        _pushed,
    ],
    ids=["one", "a page", "later", "with a lock", "pushed"],
)
async def test_a_name_that_was_forgotten_is_known_again_with_its_next_job_in_the_same_minute(
    engine: Engine, clock: Clock, come: Come
) -> None:
    await _ended(engine, clock, "a")
    await _forget(engine)
    assert await known_to(engine) == set()
    await come(engine)
    assert await known_to(engine) == {"a"}
    assert await audit(engine) == []


# What others did to it


async def test_a_lost_index_is_rebuilt_and_strange_entries_are_dropped(engine: Engine) -> None:
    worker, client = await TestWorker(engine).register(), await raw(engine)
    await enqueue(engine, new_job("a", queue="x"), new_job("b", queue="y"), new_job("c", queue="z"))
    await engine.pause("z")
    await client.zrem(engine.keys("heads"), "x")
    await client.zadd(engine.keys("heads"), {"y": 10**16, "ghost": 5, "z": "-inf"})
    assert {(finding.rule, finding.subject) for finding in await audit(engine)} == {
        ("heads", name) for name in ("x", "y", "z", "ghost")
    }
    await reconcile(engine)
    assert await audit(engine) == []
    assert await heads_of(engine) == {"x", "y"}
    assert [lease.id for lease in await worker.lease(5)] == ["a", "b"]


async def test_the_note_of_queues_that_are_in_the_index_is_checked_and_repaired(engine: Engine) -> None:
    worker, client = await TestWorker(engine).register(), await raw(engine)
    await enqueue(engine, new_job("a"))
    await worker.lease()
    await client.hset(engine.keys("meta"), "headed", "default\x1f50")
    assert {finding.rule for finding in await audit(engine)} == {"headed"}
    await reconcile(engine)
    await enqueue(engine, new_job("b"))
    assert [lease.id for lease in await worker.lease()] == ["b"]
