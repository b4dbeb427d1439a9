"""reap: the jobs of a dead worker go back to their places, or are dead after too many crashes."""

from collections import Counter

import pytest

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.reconcile import reconcile
from penstock.model.header import Attempt
from tests.conftest import Clock
from tests.engine.factories import (
    LIFE,
    TestWorker,
    dump,
    enqueue,
    happened,
    header_of,
    listening,
    new_job,
    outlive,
    raw,
    spoil,
    states,
)


async def test_the_jobs_of_a_worker_past_its_lease_go_back_to_their_places(engine: Engine, clock: Clock) -> None:
    worker, other = await TestWorker(engine, "w").register(), await TestWorker(engine).register()
    await enqueue(engine, new_job("a", unique="u"), new_job("b"), new_job("c"))
    (lease,) = await worker.lease()
    started = clock()
    await outlive(engine, clock)
    await engine.renew(LIFE, [other.name])
    assert await engine.reap(LIFE, cause='"lost"') == (1, 0)
    record = await Views(engine).job("a")
    assert record is not None
    header = record.header
    assert (header.state, header.claim, header.seq) == ("ready", "", lease.header.seq)
    assert (header.crashes, header.failures, header.releases, header.attempt) == (1, 0, 0, 1)
    assert record.attempts == [Attempt(1, started, clock(), "w", "crash", '"lost"')]
    assert await enqueue(engine, new_job("d", unique="u")) == ["a"]
    assert [lease.id for lease in await other.lease(9)] == ["a", "b", "c"]
    assert await worker.complete(lease) == "stale"


async def test_a_worker_that_renewed_keeps_its_jobs_and_a_dead_one_loses_only_its_own(
    engine: Engine, clock: Clock
) -> None:
    alive, dead = await TestWorker(engine).register(), await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    await alive.lease()
    await dead.lease()
    for _ in range(4):
        clock.advance(LIFE // 3)
        await engine.renew(LIFE, [alive.name])
    await engine.reap(LIFE)
    assert await states(engine) == {"a": "running", "b": "ready"}
    assert [node.worker for node in await Views(engine).workers()] == [alive.name]


async def test_no_worker_is_dead_before_its_lease_ends(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    for _ in range(4):
        clock.advance(LIFE // 4)
        assert await engine.reap(LIFE) == (0, 0)
    assert await states(engine) == {"a": "running"}
    clock.advance(1)
    await engine.reap(LIFE)
    assert await states(engine) == {"a": "ready"}


@pytest.mark.parametrize("gap", [LIFE // 2 + 1, 1_000_000, -60_000], ids=["half a life", "long", "clock set back"])
async def test_no_worker_is_reaped_for_one_lease_after_a_gap_in_all_renewals(
    engine: Engine, clock: Clock, gap: int
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    clock.advance(gap)
    for _ in range(4):
        assert await engine.reap(LIFE) == (0, 0)
        clock.advance(LIFE // 4 - 1)
    assert await states(engine) == {"a": "running"}
    assert (await engine.renew(LIFE, [worker.name])).words == ["ok"]


async def test_dead_workers_are_reaped_after_the_grace(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    clock.advance(1_000_000)
    for _ in range(4):
        await engine.reap(LIFE)
        assert await states(engine) == {"a": "running"}
        clock.advance(LIFE // 4)
    await engine.reap(LIFE)
    assert await states(engine) == {"a": "ready"}


async def test_the_grace_is_no_longer_than_the_lease_of_the_caller(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    clock.advance(1_000_000)
    await engine.reap(100 * LIFE)
    for _ in range(5):
        await engine.reap(LIFE)
        clock.advance(LIFE // 4)
    await engine.reap(LIFE)
    assert await states(engine) == {"a": "ready"}


async def test_the_third_crash_buries_the_job_with_its_history(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a", unique="u", retries=99))
    for _ in range(3):
        await (await TestWorker(engine).register()).lease()
        await outlive(engine, clock)
        await engine.reap(LIFE)
    record = await Views(engine).job("a")
    assert record is not None
    header = record.header
    assert (header.state, header.reason, header.crashes, header.starts) == ("dead", "crash_loop", 3, 3)
    assert [attempt.outcome for attempt in record.attempts] == ["crash"] * 3
    assert record.payload == b"payload"
    assert await enqueue(engine, new_job("b", unique="u")) == ["b"]
    notes = [note for verb, _, note in await happened(engine) if verb == "reap"]
    assert notes == ["crash", "crash", "crash_loop"]


async def test_failures_and_crashes_have_separate_budgets(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a"))
    for _ in range(4):
        worker = await TestWorker(engine).register()
        await worker.retry((await worker.lease())[0])
    worker = await TestWorker(engine).register()
    await worker.lease()
    assert await engine.reap_worker(worker.name, ["a"], LIFE, crashes=2) == (1, 0)
    header = await header_of(engine, "a")
    assert (header.state, header.failures, header.crashes) == ("ready", 4, 1)


async def test_a_job_whose_cancelling_was_asked_for_ends_so(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    await engine.cancel(["a"], "changed my mind")
    await outlive(engine, clock)
    await engine.reap(LIFE)
    header = await header_of(engine, "a")
    assert (header.state, header.reason, header.crashes, header.attempt) == ("cancelled", "changed my mind", 0, 1)


async def test_a_dead_worker_is_forgotten_and_its_id_refused(engine: Engine, clock: Clock) -> None:
    worker, idle = await TestWorker(engine, "w").register(), await TestWorker(engine, "idle").register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    await idle.lease()
    await outlive(engine, clock)
    await engine.reap(LIFE)
    assert await Views(engine).workers() == []
    assert [await engine.register(name, LIFE) for name in ("w", "idle")] == ["retired", "retired"]
    assert (await engine.renew(LIFE, ["w", "idle"])).words == ["unknown", "unknown"]


async def test_a_worker_that_no_index_knows_is_dead_too(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    client = await raw(engine)
    await client.zrem(engine.keys("workers"), worker.name)
    await client.hdel(engine.keys("nodes"), worker.name)
    assert await engine.reap(LIFE) == (1, 0)
    assert await states(engine) == {"a": "ready"}


async def test_a_known_death_is_reaped_at_once_and_only_what_had_started_is_charged(engine: Engine) -> None:
    worker, other = await TestWorker(engine).register(), await TestWorker(engine).register()
    await enqueue(engine, *map(new_job, "abc"))
    await worker.lease(2)
    await other.lease()
    assert await engine.reap_worker(worker.name, ["b"], LIFE, cause='"killed"') == (2, 0)
    a, b = await header_of(engine, "a"), await header_of(engine, "b")
    assert (a.state, a.crashes, a.releases) == ("ready", 0, 1)
    assert (b.state, b.crashes, b.releases) == ("ready", 1, 0)
    assert await states(engine) == {"a": "ready", "b": "ready", "c": "running"}
    assert [(job, note) for verb, job, note in await happened(engine) if verb == "reap"] == [
        ("a", "not_started"),
        ("b", "crash"),
    ]
    assert await engine.register(worker.name, LIFE) == "retired"


async def test_a_page_ends_at_its_limit_and_says_that_there_is_more(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job() for _ in range(5)))
    await worker.lease(5)
    assert await engine.reap_worker(worker.name, [], LIFE, limit=2) == (2, 1)
    assert await engine.reap_worker(worker.name, [], LIFE, limit=2) == (2, 1)
    assert await engine.reap_worker(worker.name, [], LIFE, limit=2) == (1, 0)
    assert set((await states(engine)).values()) == {"ready"}


async def test_one_call_takes_back_the_jobs_of_several_dead_workers(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, *(new_job() for _ in range(6)))
    for _ in range(3):
        await (await TestWorker(engine).register()).lease(2)
    await outlive(engine, clock)
    assert await engine.reap(LIFE) == (6, 0)
    assert set((await states(engine)).values()) == {"ready"}


async def test_many_dead_workers_are_reaped_page_by_page(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, *(new_job() for _ in range(20)))
    for _ in range(5):
        await (await TestWorker(engine).register()).lease(4)
    await outlive(engine, clock)
    calls = 1
    while (await engine.reap(LIFE, limit=3))[1]:
        calls += 1
    assert calls >= 20 // 3
    assert set((await states(engine)).values()) == {"ready"}
    assert await Views(engine).workers() == []


async def test_unknown_entries_of_the_index_are_dropped_and_delay_no_job(engine: Engine, clock: Clock) -> None:
    worker, alive = await TestWorker(engine, "w").register(), await TestWorker(engine, "alive").register()
    await enqueue(engine, *map(new_job, ("a", "others", "waiting", "spoilt")))
    await worker.lease()
    await alive.lease()
    await outlive(engine, clock)
    await engine.renew(LIFE, ["alive"])
    await spoil(engine, "spoilt")
    strays = [f"w\x1f1\x1f{job_id}" for job_id in ("never-was", "waiting", "others", "spoilt")]
    await (await raw(engine)).zadd(engine.keys("leases"), dict.fromkeys(strays, 0))
    while (await engine.reap(LIFE, limit=2))[1]:
        pass
    assert await (await raw(engine)).zrange(engine.keys("leases"), 0, -1) == [b"", b"alive\x1f1\x1fothers"]
    await reconcile(engine)
    assert await states(engine) == {"a": "ready", "others": "running", "waiting": "ready", "spoilt": "dead"}


async def test_a_job_is_charged_once_however_many_callers_reap(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    await outlive(engine, clock)
    await engine.script_client.together(*(engine.reap(LIFE) for _ in range(5)))
    assert (await header_of(engine, "a")).crashes == 1


async def test_reap_without_dead_workers_notes_only_that_a_caller_was_heard(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    before = await dump(engine)
    clock.advance(10)
    assert await engine.reap(LIFE) == (0, 0)
    after = await dump(engine)
    assert {key for key in before if before[key] != after[key]} == {engine.keys("meta")}


async def test_reap_wakes_workers_is_counted_and_adds_an_event(engine: Engine) -> None:
    worker, idle = await TestWorker(engine).register(), await TestWorker(engine, "idle").register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    await idle.lease()
    async with listening(engine, engine.keys.channel("idle")) as subscription:
        await engine.reap_worker(worker.name, ["a"], LIFE)
        assert await subscription.messages() == ["work"]
    assert (await happened(engine))[2:] == [("reap", "a", "crash")]
    assert await Views(engine).counts() == {"default": {"ready": 1, "running": 0}}


async def test_a_holder_that_no_index_knows_is_found_among_many_live_ones(engine: Engine) -> None:
    await enqueue(engine, *(new_job() for _ in range(100)))
    workers = [await TestWorker(engine, f"w{n:03}").register() for n in range(100)]
    for worker in workers:
        await worker.lease()
    client = await raw(engine)
    for name in ("w000", "w060", "w099"):
        await client.zrem(engine.keys("workers"), name)
    answers = [await engine.reap(LIFE) for _ in range(4)]
    assert sum(moved for moved, _ in answers) == 3
    assert [moved for moved, _ in answers[:2]] == [1, 2]
    assert Counter((await states(engine)).values()) == {"running": 97, "ready": 3}
    assert len(await Views(engine).workers()) == 97


async def test_reap_reads_no_more_when_there_are_more_live_workers(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, *(new_job() for _ in range(150)))
    for _ in range(150):
        await (await TestWorker(engine).register()).lease()
    client = await raw(engine)
    await client.config_resetstat()
    await engine.reap(LIFE)
    statistics = await client.info("commandstats")
    assert statistics["cmdstat_zrange"]["calls"] <= 55
    assert statistics["cmdstat_zscore"]["calls"] <= 55
