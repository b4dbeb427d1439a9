"""bury: running → dead, payload intact."""

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.reconcile import reconcile
from penstock.model.header import Attempt
from tests.conftest import Clock
from tests.engine.factories import TestWorker, call_of, enqueue, happened, header_of, new_job, spoil, states


async def test_a_buried_job_keeps_its_payload_its_reason_and_its_errors(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a", payload=b"bytes", expires=60_000))
    await worker.retry((await worker.lease())[0], error='"first"')
    (lease,) = await worker.lease()
    clock.advance(10)
    assert await worker.bury(lease, "no such user", '"last"') == "ok"
    record = await Views(engine).job("a")
    assert record is not None
    assert (record.payload, record.result) == (b"bytes", None)
    header = record.header
    assert (header.state, header.reason, header.since, header.claim) == ("dead", "no such user", clock(), "")
    assert (header.failures, header.starts, header.attempt) == (2, 2, 2)
    assert record.attempts[-1] == Attempt(2, clock() - 10, clock(), "w", "bury", '"last"')
    assert [attempt.error for attempt in record.attempts] == ['"first"', '"last"']


async def test_a_dead_job_runs_no_more_and_does_not_expire(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", expires=1_000))
    await worker.bury((await worker.lease())[0])
    clock.advance(86_400_000)
    assert (await engine.promote())[:2] == (0, -1)
    assert (await engine.expire())[:2] == (0, -1)
    assert await worker.lease() == []
    assert await states(engine) == {"a": "dead"}


async def test_bury_frees_the_unique_key(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", unique="u"))
    await worker.bury((await worker.lease())[0])
    assert await enqueue(engine, new_job("b", unique="u")) == ["b"]


async def test_a_job_whose_cancelling_was_asked_for_is_cancelled_instead(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    await engine.cancel(["a"], "changed my mind")
    assert await worker.bury(lease) == "cancelled"
    assert await worker.bury(lease) == "cancelled"
    header = await header_of(engine, "a")
    assert (header.state, header.reason, header.failures, header.attempt) == ("cancelled", "changed my mind", 0, 1)


async def test_a_second_bury_of_the_same_attempt_gets_the_first_answer_and_keeps_the_first_reason(
    engine: Engine,
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    assert await worker.bury(lease, "first") == "ok"
    assert await worker.bury(lease, "second") == "ok"
    record = await Views(engine).job("a")
    assert record is not None
    assert (record.header.reason, record.header.failures, len(record.attempts)) == ("first", 1, 1)


async def test_a_stale_or_damaged_job_does_not_affect_the_rest_of_its_page(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *map(new_job, ("a", "done", "spoilt", "b")))
    leases = await worker.lease(4)
    await worker.complete(leases[1])
    await spoil(engine, "spoilt")
    page = [(lease.id, call_of(lease), "failed", "{}") for lease in leases]
    assert await engine.bury(worker.name, page) == ["ok", "stale", "stale", "ok"]
    await reconcile(engine)
    assert await states(engine) == {"a": "dead", "done": "done", "spoilt": "dead", "b": "dead"}


async def test_bury_is_counted_and_adds_an_event(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await worker.bury((await worker.lease())[0], "failed")
    assert (await happened(engine))[2:] == [("bury", "a", "failed")]
    assert await Views(engine).counts() == {"default": {"ready": 0, "running": 0, "dead": 1}}
