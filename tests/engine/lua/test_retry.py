"""retry: running → scheduled, or → ready without a delay; counts a failure."""

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.reconcile import reconcile
from penstock.model.header import Attempt
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


async def test_a_retry_with_a_delay_waits_until_it_is_due(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", unique="u"))
    (lease,) = await worker.lease()
    assert await worker.retry(lease, 2_000) == "ok"
    header = await header_of(engine, "a")
    assert (header.state, header.due, header.reason, header.claim) == ("scheduled", clock() + 2_000, "error", "")
    assert (header.failures, header.crashes, header.releases, header.attempt) == (1, 0, 0, 1)
    assert await worker.lease() == []
    assert await enqueue(engine, new_job("b", unique="u")) == ["a"]
    clock.advance(2_000)
    assert (await engine.promote())[:2] == (1, -1)
    (again,) = await worker.lease()
    assert (again.payload, again.header.attempt) == (lease.payload, 2)


async def test_a_retry_without_a_delay_goes_to_the_tail_of_its_queue(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"), new_job("less-urgent", priority=60))
    (lease,) = await worker.lease()
    assert await worker.retry(lease) == "ok"
    assert [lease.id for lease in await worker.lease(9)] == ["b", "a", "less-urgent"]


async def test_every_failure_is_remembered_with_its_error(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a"))
    expected = []
    for number in (1, 2):
        (lease,) = await worker.lease()
        started = clock()
        clock.advance(50 * number)
        await worker.retry(lease, error=f'"{number}"')
        expected.append(Attempt(number, started, clock(), "w", "retry", f'"{number}"'))
    record = await Views(engine).job("a")
    assert record is not None
    assert record.attempts == expected


async def test_the_last_ten_failures_are_stored_and_all_are_counted(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", retries=99))
    for _ in range(12):
        await worker.retry((await worker.lease())[0])
    record = await Views(engine).job("a")
    assert record is not None
    assert [attempt.number for attempt in record.attempts] == list(range(3, 13))
    assert (record.header.failures, record.header.starts) == (12, 12)


async def test_a_job_that_waits_again_can_expire_again(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", expires=5_000))
    expires = clock() + 5_000
    (lease,) = await worker.lease()
    clock.advance(1_000)
    async with listening(engine, engine.keys.timer) as timer:
        await worker.retry(lease, 60_000)
        assert sorted(await timer.messages()) == [str(expires), str(clock() + 60_000)]
    assert (await engine.expire())[:2] == (0, expires)
    clock.advance(4_000)
    assert (await engine.expire())[:2] == (1, -1)
    assert await states(engine) == {"a": "cancelled"}


async def test_a_job_whose_cancelling_was_asked_for_ends_so(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", unique="u"))
    (lease,) = await worker.lease()
    await engine.cancel(["a"], "changed my mind")
    assert await worker.retry(lease) == "cancelled"
    assert await worker.retry(lease) == "cancelled"
    header = await header_of(engine, "a")
    assert (header.state, header.reason, header.failures, header.attempt) == ("cancelled", "changed my mind", 0, 1)
    assert await enqueue(engine, new_job("b", unique="u")) == ["b"]
    assert ("retry", "a", "changed my mind") in await happened(engine)


async def test_a_second_retry_of_the_same_attempt_gets_the_first_answer_even_while_the_next_runs(
    engine: Engine,
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    assert await worker.retry(lease) == "ok"
    (again,) = await worker.lease()
    assert await worker.retry(lease) == "ok"
    assert (await header_of(engine, "a")).failures == 1
    assert await worker.complete(again) == "ok"
    assert await worker.retry(lease) == "stale"


async def test_a_stale_or_damaged_job_does_not_affect_the_rest_of_its_page(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *map(new_job, ("a", "done", "spoilt", "b")))
    a, done, spoilt, b = await worker.lease(4)
    await worker.complete(done)
    await spoil(engine, "spoilt")
    page = [(lease.id, call_of(lease), delay, "e", "{}") for lease, delay in ((a, 5), (done, 5), (spoilt, 5), (b, 0))]
    assert await engine.retry(worker.name, page) == ["ok", "stale", "stale", "ok"]
    await reconcile(engine)
    assert await states(engine) == {"a": "scheduled", "done": "done", "spoilt": "dead", "b": "ready"}


async def test_retry_wakes_workers_and_timers_is_counted_and_adds_events(engine: Engine, clock: Clock) -> None:
    idle = await TestWorker(engine, "idle").register()
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    a, b = await worker.lease(2)
    await idle.lease()
    async with (
        listening(engine, engine.keys.channel("idle")) as subscription,
        listening(engine, engine.keys.timer) as timer,
    ):
        await worker.retry(a, 3_000)
        assert (await subscription.messages(), await timer.messages()) == ([], [str(clock() + 3_000)])
        await worker.retry(b)
        assert (await subscription.messages(), await timer.messages()) == (["work"], [])
    assert (await happened(engine))[4:] == [("retry", "a", "error"), ("retry", "b", "error")]
    assert await Views(engine).counts() == {"default": {"ready": 1, "running": 0, "scheduled": 1}}
