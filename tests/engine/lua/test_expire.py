"""expire: a job that was not started by its `expires` is cancelled."""

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


async def test_a_waiting_job_expires_at_its_millisecond_and_not_before(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("ready", expires=1_000, unique="u"), new_job("scheduled", due=60_000, expires=2_000))
    await enqueue(engine, new_job("patient"))
    clock.advance(999)
    assert (await engine.expire())[:2] == (0, clock() + 1)
    clock.advance(1)
    assert (await engine.expire())[:2] == (1, clock() + 1_000)
    header = await header_of(engine, "ready")
    assert (header.state, header.reason, header.since) == ("cancelled", "expired", clock())
    assert await enqueue(engine, new_job("next", unique="u")) == ["next"]
    clock.advance(1_000)
    assert (await engine.expire())[:2] == (1, -1)
    assert await states(engine) == {
        "ready": "cancelled",
        "scheduled": "cancelled",
        "patient": "ready",
        "next": "ready",
    }
    assert (await engine.promote())[:2] == (0, -1)


async def test_a_running_or_finished_job_does_not_expire(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(job_id, expires=1_000) for job_id in ("done", "running", "cancelled")))
    done, _ = await worker.lease(2)
    await worker.complete(done)
    await engine.cancel(["cancelled"], "by hand")
    clock.advance(5_000)
    assert (await engine.expire())[:2] == (0, -1)
    assert await states(engine) == {"done": "done", "running": "running", "cancelled": "cancelled"}
    assert (await header_of(engine, "cancelled")).reason == "by hand"


async def test_expire_changes_nothing_when_no_job_is_late(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job(expires=1_000))
    before = await dump(engine)
    assert (await engine.expire())[:2] == (0, clock() + 1_000)
    assert await dump(engine) == before


async def test_a_page_ends_at_its_limit_and_says_that_more_jobs_are_late(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, *(new_job(expires=1_000 + i) for i in range(5)))
    clock.advance(2_000)
    assert (await engine.expire(2))[:2] == (2, clock() - 1_000 + 2)
    assert (await engine.expire(2))[:2] == (2, clock() - 1_000 + 4)
    assert (await engine.expire(2))[:2] == (1, -1)


async def test_unknown_entries_of_the_index_are_dropped_and_delay_no_job(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("running"))
    await worker.lease()
    await enqueue(engine, new_job("late", expires=1_000), new_job("patient"), new_job("spoilt", expires=500))
    clock.advance(1_000)
    await spoil(engine, "spoilt")
    client = await raw(engine)
    strays = {f"expire\x1f{job_id}": 1 for job_id in ("running", "patient", "never-was")}
    await client.zadd(engine.keys("timers"), strays | {"foreign": 2})
    assert (await engine.expire(4))[0] == 0
    assert (await engine.expire(4))[:2] == (1, -1)
    assert await client.zrange(engine.keys("timers"), 0, -1) == [b""]
    await reconcile(engine)
    assert await states(engine) == {"running": "running", "late": "cancelled", "patient": "ready", "spoilt": "dead"}


async def test_expire_is_counted_and_adds_an_event(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a", expires=1_000), new_job("b", expires=1_000, queue="other", due=5_000))
    clock.advance(1_000)
    await engine.expire()
    assert (await happened(engine))[2:] == [("expire", "a", "expired"), ("expire", "b", "expired")]
    counts = await Views(engine).counts()
    assert counts == {"default": {"ready": 0, "cancelled": 1}, "other": {"ready": 0, "scheduled": 0, "cancelled": 1}}


async def test_an_expired_job_wakes_no_worker(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a", due=9_000, expires=1_000))
    await worker.lease()
    clock.advance(1_000)
    async with listening(engine, engine.keys.channel("w")) as subscription:
        await engine.expire()
        assert await subscription.messages() == []
