"""promote: scheduled → ready, for due jobs, in the order of their due times."""

from penstock.engine.answers import Due
from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.reconcile import reconcile
from tests.conftest import Clock
from tests.engine.factories import (
    TestWorker,
    dump,
    enqueue,
    happened,
    header_of,
    listening,
    new_job,
    raw,
    spoil,
    states,
)


async def test_a_due_job_becomes_ready_at_its_millisecond_and_not_before(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a", due=1_000), new_job("b", due=2_000))
    clock.advance(999)
    assert (await engine.promote())[:2] == (0, clock() + 1)
    clock.advance(1)
    assert (await engine.promote())[:2] == (1, clock() + 1_000)
    assert await states(engine) == {"a": "ready", "b": "scheduled"}
    clock.advance(1_000)
    assert (await engine.promote())[:2] == (1, -1)


async def test_promote_changes_nothing_when_no_job_is_due(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a", due=1_000), new_job("b"))
    before = await dump(engine)
    assert (await engine.promote())[:2] == (0, clock() + 1_000)
    assert await dump(engine) == before


async def test_an_empty_namespace_has_nothing_due(engine: Engine, clock: Clock) -> None:
    assert await engine.promote() == Due(moved=0, next=-1, now=clock())


async def test_places_in_line_are_given_in_the_order_of_due_times(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("third", due=3_000), new_job("first", due=1_000), new_job("second", due=2_000))
    clock.advance(3_000)
    await enqueue(engine, new_job("already-there"))
    assert (await engine.promote())[:2] == (3, -1)
    worker = await TestWorker(engine).register()
    assert [lease.id for lease in await worker.lease(4)] == ["already-there", "first", "second", "third"]


async def test_a_job_keeps_its_due_time_its_expiry_and_its_unique_key(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a", due=1_000, expires=5_000, unique="u", priority=7))
    before = await header_of(engine, "a")
    clock.advance(1_500)
    await engine.promote()
    header = await header_of(engine, "a")
    assert (header.state, header.since, header.due) == ("ready", clock(), before.due)
    assert (header.expires, header.priority, header.created) == (before.expires, 7, before.created)
    assert [placed.id for placed in await engine.enqueue([new_job("b", unique="u")])] == ["a"]


async def test_a_page_ends_at_its_limit_and_says_that_more_jobs_are_due(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, *(new_job(f"j{i}", due=1_000 + i) for i in range(5)))
    clock.advance(2_000)
    assert (await engine.promote(2))[:2] == (2, clock() - 1_000 + 2)
    assert (await engine.promote(2))[:2] == (2, clock() - 1_000 + 4)
    assert (await engine.promote(2))[:2] == (1, -1)


async def test_unknown_entries_of_the_index_are_dropped_and_delay_no_job(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("ready"), new_job("due", due=1_000), new_job("spoilt", due=500))
    clock.advance(1_000)
    await spoil(engine, "spoilt")
    client = await raw(engine)
    await client.zadd(engine.keys("scheduled"), {"ready": 1, "never-was": 2, "a\x1fb": 3})
    assert (await engine.promote(4))[:2] == (0, clock())
    assert (await engine.promote(4))[:2] == (1, -1)
    assert await client.zrange(engine.keys("scheduled"), 0, -1) == [b""]
    await reconcile(engine)
    assert await states(engine) == {"ready": "ready", "due": "ready", "spoilt": "dead"}


async def test_promote_wakes_workers_is_counted_and_adds_events(engine: Engine, clock: Clock) -> None:
    idle = await TestWorker(engine, "idle", ("other",)).register()
    await idle.lease()
    await enqueue(engine, new_job("a", due=1_000), new_job("b", due=1_000, queue="other"))
    clock.advance(1_000)
    async with listening(engine, engine.keys.channel("idle")) as subscription:
        await engine.promote()
        assert await subscription.messages() == ["work"]
    assert (await happened(engine))[2:] == [("promote", "a", ""), ("promote", "b", "")]
    assert await Views(engine).counts() == {
        "default": {"ready": 1, "scheduled": 0},
        "other": {"ready": 1, "scheduled": 0},
    }


async def test_promote_uses_the_servers_own_clock(real_engine: Engine) -> None:
    await enqueue(real_engine, new_job("now", due=1), new_job("later", due=60_000))
    while (await real_engine.promote())[0] == 0:
        pass
    assert await states(real_engine) == {"now": "ready", "later": "scheduled"}
