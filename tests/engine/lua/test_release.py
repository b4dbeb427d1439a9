"""release: running → ready, at its place in the queue, no attempt used."""

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.reconcile import reconcile
from tests.conftest import Clock
from tests.engine.factories import (
    TestWorker,
    call_of,
    enqueue,
    happened,
    header_of,
    listening,
    new_job,
    spoil,
    states,
)


async def test_a_released_job_goes_back_to_its_place_and_uses_no_attempt(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", unique="u"), new_job("b"), new_job("urgent", priority=0))
    urgent, a = await worker.lease(2)
    assert [await worker.release(a), await worker.release(urgent)] == ["ok", "ok"]
    header = await header_of(engine, "a")
    assert (header.state, header.claim, header.seq) == ("ready", "", a.header.seq)
    assert (header.failures, header.crashes, header.releases, header.starts, header.attempt) == (0, 0, 1, 1, 0)
    assert await enqueue(engine, new_job("c", unique="u")) == ["a"]
    assert [lease.id for lease in await worker.lease(9)] == ["urgent", "a", "b"]


async def test_a_job_that_was_released_a_hundred_times_is_still_at_its_first_attempt(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    for _ in range(100):
        await worker.release((await worker.lease())[0])
    (lease,) = await worker.lease()
    assert (lease.header.starts, lease.header.releases, lease.header.attempt) == (101, 100, 1)
    record = await Views(engine).job("a")
    assert record is not None
    assert record.attempts == []


async def test_a_job_that_waits_again_can_expire_again(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", expires=1_000))
    (lease,) = await worker.lease()
    clock.advance(2_000)
    assert await worker.release(lease) == "ok"
    assert (await engine.expire())[:2] == (1, -1)
    assert await states(engine) == {"a": "cancelled"}


async def test_a_job_whose_cancelling_was_asked_for_ends_so(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    await engine.cancel(["a"], "changed my mind")
    assert await worker.release(lease) == "cancelled"
    assert await worker.release(lease) == "cancelled"
    header = await header_of(engine, "a")
    assert (header.state, header.reason, header.attempt) == ("cancelled", "changed my mind", 1)


async def test_a_second_release_of_the_same_attempt_gets_the_first_answer_and_takes_nothing_from_the_next(
    engine: Engine,
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    assert await worker.release(lease) == "ok"
    (again,) = await worker.lease()
    assert await worker.release(lease) == "ok"
    assert await states(engine) == {"a": "running"}
    assert await worker.complete(again) == "ok"


async def test_a_stale_or_damaged_job_does_not_affect_the_rest_of_its_page(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *map(new_job, ("a", "done", "spoilt", "b")))
    leases = await worker.lease(4)
    await worker.complete(leases[1])
    await spoil(engine, "spoilt")
    page = [(lease.id, call_of(lease)) for lease in leases]
    assert await engine.release(worker.name, page) == ["ok", "stale", "stale", "ok"]
    await reconcile(engine)
    assert await states(engine) == {"a": "ready", "done": "done", "spoilt": "dead", "b": "ready"}


async def test_release_wakes_workers_is_counted_and_adds_an_event(engine: Engine) -> None:
    idle, worker = await TestWorker(engine, "idle").register(), await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    await idle.lease()
    async with listening(engine, engine.keys.channel("idle")) as subscription:
        await worker.release(lease)
        assert await subscription.messages() == ["work"]
    assert (await happened(engine))[2:] == [("release", "a", "")]
    assert await Views(engine).counts() == {"default": {"ready": 1, "running": 0}}
