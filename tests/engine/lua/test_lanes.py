"""Lanes: locks, limits, order and rates."""

import itertools
from collections import Counter

import pytest

from penstock.engine.answers import Lease
from penstock.engine.engine import PAGE, Engine, Retention
from penstock.engine.repair.audit import audit
from tests.conftest import Clock
from tests.engine.factories import LIFE, TestWorker, call_of, enqueue, header_of, lane, new_job, raw, states

LINE = lane("line", 1, kind="ordered")
STOP = lane("stop", 1, kind="hold")


async def ids(worker: TestWorker, want: int = 99) -> list[str]:
    return [lease.id for lease in await worker.lease(want)]


async def complete(worker: TestWorker, leases: list[Lease]) -> None:
    await worker.engine.complete(worker.name, [(lease.id, call_of(lease), b"") for lease in leases])


async def left_over(engine: Engine) -> dict[str, list[bytes]]:
    """What is stored of lanes besides the sentinels."""
    client = await raw(engine)
    left = {name: await client.zrange(engine.keys(name), 0, -1) for name in ("held", "holders", "openings")}
    left["lanes"] = await client.hkeys(engine.keys("lanes"))
    return {name: rows for name, members in left.items() if (rows := [row for row in members if row])}


# Locks


async def test_a_job_with_another_lock_runs_while_two_jobs_of_one_lock_take_turns(engine: Engine) -> None:
    one, other = await TestWorker(engine).register(), await TestWorker(engine).register()
    await enqueue(engine, new_job("1", lanes=["lock:t"]), new_job("2"), new_job("3", lanes=["lock:t"]))
    (first,), (second,) = await one.lease(), await other.lease()
    assert (first.id, second.id) == ("1", "2")
    assert await ids(other) == []
    await one.complete(first)
    assert await ids(one) == ["3"]


async def test_a_priority_0_job_of_a_lock_overtakes_waiting_priority_99_jobs(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(f"late{i}", lanes=["lock:t"], priority=99) for i in range(20)))
    (lease,) = await worker.lease()
    await enqueue(engine, new_job("urgent", lanes=["lock:t"], priority=0))
    await worker.complete(lease)
    assert await ids(worker) == ["urgent"]


async def test_an_urgent_job_overtakes_a_job_that_its_lock_shows_already(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(f"late{i}", lanes=["lock:t"], priority=99) for i in range(3)))
    await enqueue(engine, new_job("urgent", lanes=["lock:t"], priority=0))
    order = []
    while leases := await worker.lease(99):
        order += [lease.id for lease in leases]
        await complete(worker, leases)
    assert order == ["urgent", "late0", "late1", "late2"]


async def test_a_job_that_waits_for_its_lock_delays_no_other(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("holder", lanes=["lock:t"]))
    await worker.lease()
    for _ in range(5):
        await enqueue(engine, *(new_job(lanes=["lock:t"]) for _ in range(100)))
    await enqueue(engine, new_job("free"))
    assert await ids(worker, 1) == ["free"]


async def test_locks_in_either_order_never_deadlock_and_never_run_at_once(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    orders = itertools.permutations(["lock:a", "lock:b", "lock:c"], 2)
    pairs = [list(order) for order in orders]
    for round_ in range(3):
        await enqueue(engine, *(new_job(f"{round_}-{i}", lanes=pairs[i % len(pairs)]) for i in range(100)))
    done = 0
    while leases := await worker.lease(10):
        assert len(leases) == 1  # any two of these have a lock in common
        await complete(worker, leases)
        done += 1
    assert done == 300
    assert await left_over(engine) == {}


async def test_a_lock_that_a_job_names_twice_counts_once(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(f"j{i}", lanes=["lock:t", "lock:t"]) for i in range(2)))
    assert (await header_of(engine, "j0")).lanes == ["lock:t"]
    for expected in ("j0", "j1"):
        (lease,) = await worker.lease(9)
        assert lease.id == expected
        await worker.complete(lease)


@pytest.mark.parametrize("verb", ["complete", "retry", "bury", "release", "snooze"])
async def test_every_end_of_a_run_frees_the_lock(engine: Engine, verb: str) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", lanes=["lock:t"]), new_job("b", lanes=["lock:t"], priority=0, due=1))
    (lease,) = await worker.lease()
    await enqueue(engine, new_job("c", lanes=["lock:t"], priority=0))
    settle = getattr(worker, verb)
    assert await (settle(lease, 60_000) if verb == "snooze" else settle(lease)) == "ok"
    assert await ids(worker) == ["c"]


async def test_a_dead_worker_frees_its_locks_when_it_is_reaped_or_retires(engine: Engine) -> None:
    await enqueue(engine, *(new_job(f"j{i}", lanes=[f"lock:{i % 2}"]) for i in range(4)))
    for leave in (False, True):
        worker = await TestWorker(engine).register()
        assert await ids(worker) == ["j0", "j1"]
        await (engine.retire(worker.name) if leave else engine.reap_worker(worker.name, [], LIFE))
    assert await ids(await TestWorker(engine).register()) == ["j0", "j1"]


async def test_a_held_job_can_be_cancelled_or_expire_and_the_next_is_shown(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(f"j{i}", lanes=["lock:t"], expires=5_000 * (i == 3)) for i in range(5)))
    await engine.cancel(["j0", "j2"])
    clock.advance(5_000)
    await engine.expire()
    for expected in ("j1", "j4"):
        (lease,) = await worker.lease(9)
        assert lease.id == expected
        await worker.complete(lease)
    assert await left_over(engine) == {}


# Limits


async def test_a_lane_runs_no_more_jobs_than_its_limit_however_they_end(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    for _ in range(3):
        await enqueue(engine, *(new_job(lanes=[lane("few", 3)], priority=i % 4) for i in range(50)))
    running: list[Lease] = []
    for round_ in itertools.count():
        running += await worker.lease(10)
        if not running:
            break
        assert len(running) <= 3
        lease = running.pop(round_ % len(running))
        await (worker.retry(lease) if round_ % 5 == 0 and lease.ready.failures == 0 else worker.complete(lease))
    assert Counter((await states(engine)).values()) == {"done": 150}
    assert await left_over(engine) == {}


async def test_a_lane_goes_on_while_the_lock_of_some_of_its_jobs_is_taken(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    batch = lane("batch", 4)
    await enqueue(engine, new_job("holder", lanes=["lock:busy"]))
    await worker.lease()
    jobs = [new_job(f"j{i}", lanes=[batch, "lock:busy"] if i % 5 else [batch]) for i in range(100)]
    await enqueue(engine, *jobs)
    done = 0
    while leases := await worker.lease(10):
        await complete(worker, leases)
        done += len(leases)
    assert done == 20
    assert Counter((await states(engine)).values()) == {"done": 20, "held": 80, "running": 1}


@pytest.mark.parametrize("want", [1, 4, 8])
async def test_a_tenant_with_many_jobs_lets_another_start_after_at_most_eight(engine: Engine, want: int) -> None:
    worker = await TestWorker(engine).register()
    for _ in range(5):
        await enqueue(engine, *(new_job(lanes=[lane("tenant1", 100)]) for _ in range(100)))
    started = []
    for _ in range(3):
        started += await worker.lease(want)
    await enqueue(engine, new_job("other", lanes=[lane("tenant2", 100)]))
    after: list[str] = []
    while "other" not in after:
        after += await ids(worker, want)
    assert after.index("other") <= 8


async def test_lanes_that_are_not_served_or_paused_in_one_queue_go_on_in_the_others(engine: Engine) -> None:
    shared = lane("shared", 2)
    for queue in ("paused", "unserved", "served"):
        await enqueue(engine, *(new_job(lanes=[shared], queue=queue) for _ in range(20)))
    await engine.pause("paused")
    worker = await TestWorker(engine, queues=("paused", "served")).register()
    done = 0
    while leases := await worker.lease(10):
        assert len(leases) <= 2
        await complete(worker, leases)
        done += len(leases)
    assert done == 20


async def test_a_limit_that_the_code_changes_counts_from_then_on(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(lanes=[lane("few", 1)]) for _ in range(9)))
    assert len(await worker.lease(9)) == 1
    await enqueue(engine, new_job(lanes=["lock:other", lane("few", 5)]))
    assert len(await worker.lease(9)) == 4


# Order


async def test_an_ordered_lane_keeps_the_order_of_enqueueing_whatever_the_priorities(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    names = [f"j{i}" for i in range(6)]
    await enqueue(engine, *(new_job(name, lanes=[LINE], priority=90 - i) for i, name in enumerate(names)))
    order = []
    while leases := await worker.lease(9):
        order += [lease.id for lease in leases]
        await complete(worker, leases)
    assert order == names


@pytest.mark.parametrize("verb", ["retry", "snooze", "release", "reap", "retire"])
async def test_a_turn_survives(engine: Engine, clock: Clock, verb: str) -> None:
    worker, other = await TestWorker(engine).register(), await TestWorker(engine).register()
    await enqueue(engine, *(new_job(f"j{i}", lanes=[LINE], priority=i) for i in (9, 5, 0)))
    (lease,) = await worker.lease(9)
    match verb:
        case "reap":
            await engine.reap_worker(worker.name, [lease.id], LIFE)
        case "retire":
            await engine.retire(worker.name)
        case _:
            await (getattr(worker, verb)(lease, 1_000) if verb == "snooze" else getattr(worker, verb)(lease))
    if verb == "snooze":
        assert await ids(other) == []
        clock.advance(1_000)
        await engine.promote()
    for expected in ("j9", "j5", "j0"):
        (lease,) = await other.lease(9)
        assert lease.id == expected
        await other.complete(lease)
    assert await left_over(engine) == {}


async def test_a_job_that_waits_for_a_lock_keeps_its_turn_in_the_ordered_lane(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("holder", lanes=["lock:t"]))
    (holder,) = await worker.lease()
    await enqueue(engine, new_job("first", lanes=[LINE, "lock:t"]), new_job("second", lanes=[LINE]))
    assert await ids(worker) == []
    await worker.complete(holder)
    (first,) = await worker.lease(9)
    assert first.id == "first"
    await worker.complete(first)
    assert await ids(worker) == ["second"]


async def test_two_ordered_lanes_in_either_order_never_deadlock(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    row = lane("row", 1, kind="ordered")
    lanes = ([LINE, row], [row, LINE], [row], [LINE], [LINE, "lock:t"], ["lock:t", row])
    await enqueue(engine, *(new_job(lanes=lanes[i % len(lanes)]) for i in range(90)))
    done = 0
    while leases := await worker.lease(10):
        await complete(worker, leases)
        done += len(leases)
    assert done == 90


async def test_a_dead_job_stops_a_lane_that_holds_until_it_is_revived(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(f"j{i}", lanes=[STOP]) for i in range(2)))
    (lease,) = await worker.lease(9)
    await worker.bury(lease)
    assert await ids(worker) == []
    assert await engine.revive(["j0"]) == ["ok"]
    (lease,) = await worker.lease(9)
    assert lease.id == "j0"
    await worker.complete(lease)
    assert await ids(worker) == ["j1"]


async def test_a_dead_job_frees_its_ordered_lane_when_it_is_pruned_or_at_once_without_hold(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(
        engine, *(new_job(f"{name}{i}", lanes=[spec]) for i in range(2) for name, spec in (("h", STOP), ("c", LINE)))
    )
    for lease in await worker.lease(9):
        await worker.bury(lease)
    assert await ids(worker) == ["c1"]
    await engine.prune(Retention(dead=0))
    assert await ids(worker) == ["h1"]


# Rates


async def test_a_rate_is_never_exceeded_in_any_window_and_nearly_reached(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    rated = lane("rated", rate="0.2", burst="10")
    for _ in range(12):
        await enqueue(engine, *(new_job(lanes=[rated], priority=i % 3) for i in range(100)))
    starts: list[int] = []
    began = clock()
    while clock() < began + 5_000:
        leases = await worker.lease(20)
        starts += [clock() for _ in leases]
        if leases:
            await complete(worker, leases)
        due = await engine.admit()
        clock.now = max(clock() + 1, due.next) if due.next > 0 and not leases else clock() + 1
    for i, first in enumerate(starts):
        for j in range(i, len(starts)):
            assert j - i + 1 <= 0.2 * (starts[j] - first) + 10 + 0.001
    assert len(starts) >= 900


async def test_a_retry_in_an_ordered_lane_with_a_rate_pays_again(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(
        engine, *(new_job(f"j{i}", lanes=[lane("paced", 1, rate="0.001", burst="1", kind="ordered")]) for i in range(2))
    )
    (lease,) = await worker.lease(9)
    await worker.retry(lease)
    assert await ids(worker) == []
    clock.advance(1_000)
    await engine.admit()
    assert await ids(worker) == ["j0"]


# Foreign hands, and large pages


async def test_unknown_entries_among_waiting_jobs_delay_no_job(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", lanes=["lock:t"]), new_job("b", lanes=["lock:t"]), new_job("x"))
    (a, x) = await worker.lease(9)
    client = await raw(engine)
    ghosts = [f"lock:t\x1fdefault\x1f{'0' * 15}{i}\x1f{name}" for i, name in enumerate(("ghost", "x", "a"))]
    await client.zadd(engine.keys("held"), dict.fromkeys(ghosts, 0))
    await worker.complete(a)
    assert await ids(worker) == ["b"]
    assert await client.zrange(engine.keys("held"), 0, -1) == [b""]
    await worker.complete(x)


async def test_a_page_holds_100_jobs_with_a_lane_each_and_a_lane_in_common(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    for _ in range(2):
        await enqueue(engine, *(new_job(lanes=[f"lock:{i}", lane("all", 60), LINE][:2]) for i in range(100)))
    done = 0
    while leases := await worker.lease(100):
        assert len(leases) <= 60
        await complete(worker, leases)
        done += len(leases)
    assert done == 200
    assert await left_over(engine) == {}


async def test_a_lane_of_more_queues_than_one_call_can_show_jobs_of_shows_them_in_turn(
    engine: Engine, clock: Clock
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("first", lanes=["lock:t"]))
    (first,) = await worker.lease()
    others = [new_job(f"j{n}", lanes=["lock:t"], queue=f"q{n}") for n in range(1_100)]
    for at in range(0, len(others), PAGE):
        await enqueue(engine, *others[at : at + PAGE])
    assert await worker.complete(first) == "ok"
    for shown in (500, 1_100, 1_100):
        assert Counter((await states(engine)).values())["ready"] == shown
        assert await audit(engine) == []
        clock.advance(5)
        await engine.admit()
    assert len(await worker.lease(5)) == 1


async def test_lanes_work_with_the_production_scripts(real_engine: Engine) -> None:
    worker = await TestWorker(real_engine).register()
    await enqueue(real_engine, *(new_job(lanes=["lock:t", LINE, lane("few", 2)][i % 3 :]) for i in range(30)))
    done = 0
    while leases := await worker.lease(10):
        await complete(worker, leases)
        done += len(leases)
    assert done == 30
    assert await left_over(real_engine) == {}
