"""prune: members of an unfinished batch stay, and jobs behind them are pruned all the same."""

import pytest

from penstock.engine.engine import PAGE, Engine, Retention
from penstock.engine.read.views import Views
from tests.conftest import Clock
from tests.engine.factories import TestWorker, call_of, enqueue, new_job, open_batch, raw

FEW = Retention(finished=200, dead=200)
DAY = 86_400_000


async def _end(engine: Engine, worker: TestWorker, verb: str, want: int) -> None:
    """Jobs in line end by this verb, in pages."""
    while want:
        leases = await worker.lease(min(PAGE, want))
        want -= len(leases)
        if verb == "complete":
            await engine.complete(worker.name, [(lease.id, call_of(lease), b"") for lease in leases])
        else:
            await engine.bury(worker.name, [(lease.id, call_of(lease), "failed", "{}") for lease in leases])


async def _enqueue(engine: Engine, n: int, kind: str, batch: str = "") -> None:
    for start in range(0, n, PAGE):
        await enqueue(engine, *(new_job(f"{kind}-{i}", batch=batch) for i in range(start, min(start + PAGE, n))))


async def _kept(engine: Engine) -> dict[str, int]:
    """How many of each kind still have their record."""
    counts: dict[str, int] = {}
    async for job_id, header in Views(engine).headers():
        if not header.compact:
            kind = job_id.rpartition("-")[0]
            counts[kind] = counts.get(kind, 0) + 1
    return counts


async def _prune(engine: Engine, keep: Retention) -> int:
    """As a timer does it; how many calls it took."""
    calls = 1
    while (await engine.prune(keep))[1]:
        calls += 1
    return calls


async def _members_first(engine: Engine, members: int, others: int) -> TestWorker:
    """In `finished` and in `dead`: members of an open batch, then jobs that are in none."""
    worker = await TestWorker(engine).register()
    await open_batch(engine, "b", then=False, on_failure=False)
    for batch, kind, n in (("b", "member", members), ("", "other", others)):
        for verb in ("complete", "bury"):
            await _enqueue(engine, n, f"{kind}-{verb}", batch)
            await _end(engine, worker, verb, n)
    return worker


async def test_jobs_behind_an_open_batch_are_pruned_down_to_the_limits(engine: Engine) -> None:
    await _members_first(engine, 600, 410)
    calls = await _prune(engine, FEW)
    assert calls <= 2 + 1010 // PAGE
    assert await _kept(engine) == {
        "member-complete": 600,
        "member-bury": 600,
        "other-complete": 200,
        "other-bury": 200,
    }


async def test_later_jobs_are_pruned_without_another_look_at_the_members(engine: Engine, clock: Clock) -> None:
    worker = await _members_first(engine, 350, 10)
    few = Retention(finished=10, dead=10)
    await _prune(engine, few)
    for n in range(3):
        clock.advance(15_000)
        await _enqueue(engine, 50, f"later{n}")
        await _end(engine, worker, "bury", 50)
        assert await _prune(engine, few) == 1
    kept = await _kept(engine)
    assert kept == {"member-complete": 350, "member-bury": 350, "other-complete": 10, "later2": 10}


async def test_dead_jobs_behind_an_open_batch_are_pruned_by_age(engine: Engine, clock: Clock) -> None:
    await _members_first(engine, 150, 20)
    clock.advance(91 * DAY)
    await _prune(engine, Retention(finished=10_000))
    kept = await _kept(engine)
    assert (kept["member-bury"], kept.get("other-bury", 0)) == (150, 0)


@pytest.mark.parametrize("gone", ["pruned", "revived"])
async def test_a_pruning_cursor_whose_job_is_gone_hides_no_job(engine: Engine, clock: Clock, gone: str) -> None:
    worker = await _members_first(engine, 120, 20)
    few = Retention(finished=10_000, dead=5)
    await _prune(engine, few)
    mark = (await (await raw(engine)).hget(engine.keys("meta"), "needed_dead")).split()[2].decode()
    clock.advance(1_000)
    if gone == "revived":
        await engine.revive([mark])
        await _end(engine, worker, "bury", 1)
    else:
        await (await raw(engine)).hset(engine.keys("meta"), "needed_dead", f"{clock()} 1 never-was")
    await _enqueue(engine, 20, "later")
    await _end(engine, worker, "bury", 20)
    await _prune(engine, few)
    kept = await _kept(engine)
    newest = 4 if gone == "revived" else 5  # of the newest five, which stay whoever they are, the revived member is one
    assert (kept["member-bury"], kept.get("other-bury", 0), kept["later"]) == (120, 0, newest)


async def test_members_are_pruned_once_their_batch_has_ended(engine: Engine, clock: Clock) -> None:
    await _members_first(engine, 150, 0)
    await _prune(engine, Retention(finished=20, dead=20))
    assert await _kept(engine) == {"member-complete": 150, "member-bury": 150}
    await engine.seal_batch("b")
    clock.advance(600_000)
    await _prune(engine, Retention(finished=20, dead=20))
    assert await _kept(engine) == {"member-complete": 20, "member-bury": 20}
