"""prune: finished jobs become tombstones and are then removed, by age and by number."""

from penstock.engine.engine import Engine, Retention
from penstock.engine.keys import KINDS
from penstock.engine.read.views import Views
from penstock.engine.repair.reconcile import reconcile
from tests.conftest import Clock
from tests.engine.factories import (
    LARGE,
    LIFE,
    TestWorker,
    dump,
    enqueue,
    happened,
    header_of,
    new_job,
    populate,
    raw,
    spoil,
    states,
)

DAY = 86_400_000


async def _finish(engine: Engine, *ids: str, keep: int = 1_000) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(job_id, keep=keep) for job_id in ids))
    for lease in await worker.lease(len(ids)):
        await worker.complete(lease, b"result")


async def test_a_finished_job_is_kept_as_long_as_its_result_and_then_only_its_outcome(
    engine: Engine, clock: Clock
) -> None:
    await _finish(engine, "done")
    await enqueue(engine, new_job("cancelled", keep=1_000))
    await engine.cancel(["cancelled"], "why not")
    clock.advance(999)
    assert await engine.prune() == (0, 0)
    clock.advance(1)
    assert await engine.prune() == (2, 0)
    for job_id, state, reason in (("done", "done", ""), ("cancelled", "cancelled", "why not")):
        record = await Views(engine).job(job_id)
        assert record is not None
        assert (record.payload, record.result, record.attempts) == (None, None, [])
        assert (record.header.state, record.header.reason, record.header.compact) == (state, reason, 1)


async def test_a_tombstone_is_gone_after_its_life(engine: Engine, clock: Clock) -> None:
    await _finish(engine, "a", keep=0)
    assert await engine.prune(Retention(tomb_life=5_000)) == (1, 0)
    clock.advance(4_999)
    assert await engine.prune(Retention(tomb_life=5_000)) == (0, 0)
    clock.advance(1)
    assert await engine.prune(Retention(tomb_life=5_000)) == (1, 0)
    assert await Views(engine).job("a") is None
    assert await (await raw(engine)).hmget(engine.keys("meta"), "accepted", "forgotten") == [b"1", b"1"]


async def test_a_resent_settle_is_recognised_at_a_tombstone(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", keep=0))
    (lease,) = await worker.lease()
    await worker.complete(lease)
    await engine.prune()
    assert (await header_of(engine, "a")).compact
    assert await worker.complete(lease) == "ok"
    assert await worker.retry(lease) == "stale"


async def test_dead_jobs_have_a_retention_of_their_own(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", keep=0))
    await worker.retry((await worker.lease())[0])
    await worker.bury((await worker.lease())[0])
    clock.advance(10 * DAY - 1)
    assert await engine.prune(Retention(dead_life=10 * DAY)) == (0, 0)
    clock.advance(1)
    assert await engine.prune(Retention(dead_life=10 * DAY)) == (1, 0)
    record = await Views(engine).job("a")
    assert record is not None
    assert (record.header.state, record.header.compact, record.payload, record.attempts) == ("dead", 1, None, [])


async def test_prune_removes_the_oldest_of_too_many_jobs_first(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    for job_id in "abcdef":
        clock.advance(1)
        await enqueue(engine, new_job(job_id))
        (lease,) = await worker.lease()
        await (worker.complete(lease) if job_id in "abc" else worker.bury(lease))
    few = Retention(finished=1, dead=2)
    assert await engine.prune(few) == (3, 0)
    compact = {job_id for job_id in "abcdef" if (await header_of(engine, job_id)).compact}
    assert compact == {"a", "b", "d"}
    assert await engine.prune(few) == (0, 0)
    assert await engine.prune(Retention(tombs=1)) == (2, 0)
    assert set(await states(engine)) == {"c", "d", "e", "f"}


async def test_an_unfinished_job_is_never_pruned(engine: Engine, clock: Clock) -> None:
    await populate(engine)
    clock.advance(1_000 * DAY)
    nothing = Retention(finished=0, tomb_life=0, tombs=0, dead_life=0, dead=0)
    while (await engine.prune(nothing))[0]:
        pass
    assert await states(engine) == {
        "ready": "ready",
        "scheduled": "scheduled",
        "running": "running",
        "cancelling": "running",
    }


async def test_a_page_ends_at_its_limit_and_says_that_there_is_more(engine: Engine) -> None:
    await _finish(engine, *"abcde", keep=0)
    assert await engine.prune(limit=2) == (2, 1)
    assert await engine.prune(limit=2) == (2, 1)
    assert await engine.prune(limit=2) == (1, 0)


async def test_prune_changes_nothing_while_jobs_are_young_and_few(engine: Engine, clock: Clock) -> None:
    await populate(engine)
    await engine.prune()
    before = await dump(engine)
    assert await engine.prune() == (0, 0)
    assert await dump(engine) == before


async def test_unknown_entries_of_the_index_are_dropped_and_delay_no_job(engine: Engine, clock: Clock) -> None:
    await _finish(engine, "old")
    await enqueue(engine, new_job("waiting"), new_job("spoilt", keep=1_000, payload=LARGE))
    await engine.cancel(["spoilt"])
    clock.advance(10_000)
    await spoil(engine, "spoilt")
    client = await raw(engine)
    for index in ("finished", "dead"):
        await client.zadd(engine.keys(index), {"waiting": 1, "never-was": 2})
    for _ in range(4):
        await engine.prune(Retention(dead_life=0), limit=2)
    assert [await client.zcard(engine.keys(index)) for index in ("finished", "dead")] == [1, 1]
    assert (await header_of(engine, "old")).compact
    await reconcile(engine)
    assert await states(engine) == {"old": "done", "waiting": "ready", "spoilt": "dead"}


async def test_retired_worker_ids_and_old_statistics_go_with_time(engine: Engine, clock: Clock) -> None:
    await _finish(engine, "a")
    await engine.register("w", LIFE)
    await engine.retire("w")
    client, minute = await raw(engine), clock() // 60_000
    old = f"{minute}\x1fdefault\x1fenqueue"
    clock.advance(120 * 60_000)
    await engine.prune(Retention(tomb_life=DAY))
    assert await client.hexists(engine.keys("stats"), old)
    assert await engine.register("w", LIFE) == "retired"
    clock.advance(DAY)
    await engine.prune(Retention(tomb_life=DAY))
    assert not await client.hexists(engine.keys("stats"), old)
    assert await client.zcard(engine.keys("retired")) == 1


async def test_prune_is_counted_and_adds_an_event(engine: Engine) -> None:
    await _finish(engine, "a", "b", keep=0)
    await engine.prune()
    assert (await happened(engine))[-2:] == [("prune", "a", ""), ("prune", "b", "")]
    assert await Views(engine).counts() == {"default": {"ready": 0, "running": 0, "done": 0}}


async def test_all_finished_jobs_are_removed_in_the_end(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, *(new_job(f"j{i}", unique=f"u{i}", expires=99_000) for i in range(60)))
    for i, lease in enumerate(await worker.lease(60)):
        await (worker.complete(lease, b"result") if i % 2 else worker.bury(lease))
    await engine.retire("w")
    clock.advance(100 * DAY)
    for _ in range(3):
        await engine.prune()
    client = await raw(engine)
    sizes = {
        name: await (client.hlen if kind == "hash" else client.zcard)(engine.keys(name))
        for name, kind in KINDS.items()
        if name not in {"meta", "events", "queues", "counts", "stats"}
    }
    assert sizes == dict.fromkeys(sizes, 1)
