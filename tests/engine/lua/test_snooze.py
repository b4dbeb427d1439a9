"""snooze: running → scheduled, no attempt used."""

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


async def test_a_snoozed_job_waits_until_it_is_due_and_uses_no_attempt(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", unique="u"))
    (lease,) = await worker.lease()
    assert await worker.snooze(lease, 2_000, "not yet") == "ok"
    header = await header_of(engine, "a")
    assert (header.state, header.due, header.reason, header.claim) == ("scheduled", clock() + 2_000, "not yet", "")
    assert (header.failures, header.releases, header.starts, header.attempt) == (0, 1, 1, 0)
    assert await enqueue(engine, new_job("b", unique="u")) == ["a"]
    clock.advance(2_000)
    assert (await engine.promote())[:2] == (1, -1)
    (again,) = await worker.lease()
    assert (again.payload, again.header.attempt, again.header.starts) == (lease.payload, 1, 2)


async def test_a_job_snoozed_without_a_delay_is_due_at_once_behind_the_others(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    (lease,) = await worker.lease()
    assert await worker.snooze(lease, 0) == "ok"
    assert await states(engine) == {"a": "scheduled", "b": "ready"}
    assert (await engine.promote())[:2] == (1, -1)
    assert [lease.id for lease in await worker.lease(2)] == ["b", "a"]


async def test_a_job_that_waits_again_can_expire_again(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", expires=1_000))
    await worker.snooze((await worker.lease())[0], 60_000)
    clock.advance(1_000)
    assert (await engine.expire())[:2] == (1, -1)
    assert (await engine.promote())[:2] == (0, -1)


async def test_a_job_whose_cancelling_was_asked_for_ends_so(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    await engine.cancel(["a"], "changed my mind")
    assert await worker.snooze(lease, 1_000) == "cancelled"
    assert await worker.snooze(lease, 1_000) == "cancelled"
    header = await header_of(engine, "a")
    assert (header.state, header.reason, header.due, header.releases) == ("cancelled", "changed my mind", 0, 0)


async def test_a_second_snooze_of_the_same_attempt_gets_the_first_answer_and_moves_nothing(
    engine: Engine, clock: Clock
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    due = clock() + 1_000
    assert await worker.snooze(lease, 1_000) == "ok"
    clock.advance(500)
    assert await worker.snooze(lease, 1_000) == "ok"
    assert (await header_of(engine, "a")).due == due


async def test_a_stale_or_damaged_job_does_not_affect_the_rest_of_its_page(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *map(new_job, ("a", "done", "spoilt", "b")))
    leases = await worker.lease(4)
    await worker.complete(leases[1])
    await spoil(engine, "spoilt")
    page = [(lease.id, call_of(lease), 1_000, "later") for lease in leases]
    assert await engine.snooze(worker.name, page) == ["ok", "stale", "stale", "ok"]
    await reconcile(engine)
    assert await states(engine) == {"a": "scheduled", "done": "done", "spoilt": "dead", "b": "scheduled"}


async def test_snooze_wakes_the_timer_is_counted_and_adds_events(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    a, b = await worker.lease(2)
    async with listening(engine, engine.keys.timer) as timer:
        await worker.snooze(a, 2_000)
        assert await timer.messages() == [str(clock() + 2_000)]
        await worker.snooze(b, 3_000)
        assert await timer.messages() == []
    assert (await happened(engine))[3:] == [
        ("lease", "b", ""),
        ("snooze", "a", "snoozed"),
        ("snooze", "b", "snoozed"),
    ]
    assert await Views(engine).counts() == {"default": {"ready": 0, "running": 0, "scheduled": 2}}
