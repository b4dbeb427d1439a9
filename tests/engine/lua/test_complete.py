"""complete: running → done."""

import pytest

from penstock.engine.engine import PAGE, Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.reconcile import reconcile
from tests.conftest import Clock
from tests.engine.factories import TestWorker, call_of, enqueue, happened, header_of, new_job, raw, spoil, states


async def test_a_done_job_has_its_result_and_no_payload_any_more(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", keep=60_000))
    (lease,) = await worker.lease()
    clock.advance(700)
    assert await worker.complete(lease, b"result") == "ok"
    record = await Views(engine).job("a")
    assert record is not None
    assert (record.payload, record.result, record.attempts) == (None, b"result", [])
    header = record.header
    assert (header.state, header.since, header.result, header.claim, header.attempt) == ("done", clock(), 1, "", 1)
    assert (header.fence, header.started) == (lease.header.fence, lease.header.started)


@pytest.mark.parametrize(("result", "keep", "kept"), [(b"", 60_000, 0), (b"result", 0, 2), (b"\x00", 1, 1)])
async def test_a_result_is_kept_if_there_is_one_and_it_is_wanted(
    engine: Engine, result: bytes, keep: int, kept: int
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", keep=keep))
    (lease,) = await worker.lease()
    assert await worker.complete(lease, result) == "ok"
    record = await Views(engine).job("a")
    assert record is not None
    assert (record.header.result, record.result) == (kept, result if kept == 1 else None)


async def test_complete_frees_the_unique_key(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", unique="u"))
    (lease,) = await worker.lease()
    await worker.complete(lease)
    assert await enqueue(engine, new_job("b", unique="u")) == ["b"]


async def test_a_job_that_returns_before_its_cancelling_is_done(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    assert await engine.cancel(["a"], "changed my mind") == ["cancelling"]
    assert await worker.complete(lease, b"result") == "ok"
    header = await header_of(engine, "a")
    assert (header.state, header.reason, header.cancelling) == ("done", "", 0)
    assert (await engine.renew(1_000, [worker.name])).cancelling == []


async def test_earlier_failures_stay_in_its_history_but_not_their_reason(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await worker.retry((await worker.lease())[0])
    await worker.complete((await worker.lease())[0])
    record = await Views(engine).job("a")
    assert record is not None
    assert [attempt.number for attempt in record.attempts] == [1]
    assert (record.header.failures, record.header.attempt, record.header.reason) == (1, 2, "")


async def test_a_second_complete_of_the_same_attempt_gets_the_first_answer_and_keeps_the_first_result(
    engine: Engine,
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    assert await worker.complete(lease, b"first") == "ok"
    assert await worker.complete(lease, b"second") == "ok"
    record = await Views(engine).job("a")
    assert record is not None
    assert record.result == b"first"
    assert [verb for verb, _, _ in await happened(engine)] == ["enqueue", "lease", "complete"]


async def test_a_stale_or_damaged_job_does_not_affect_the_rest_of_its_page(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *map(new_job, ("a", "b", "spoilt", "c")))
    a, b, spoilt, c = await worker.lease(4)
    await worker.release(b)
    await spoil(engine, "spoilt")
    page = [(lease.id, call_of(lease), b"") for lease in (a, b, spoilt, c)]
    answers = await engine.complete(worker.name, [*page, ("never-was", 1, b""), (a.id, call_of(a), b"")])
    assert answers == ["ok", "stale", "stale", "ok", "stale", "ok"]
    await reconcile(engine)
    assert await states(engine) == {"a": "done", "b": "ready", "spoilt": "dead", "c": "done"}


async def test_a_whole_page_is_settled_at_once(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await engine.enqueue([new_job() for _ in range(PAGE)])
    leases = await worker.lease(PAGE)
    answers = await engine.complete(worker.name, [(lease.id, call_of(lease), b"result") for lease in leases])
    assert answers == ["ok"] * PAGE
    assert await Views(engine).counts() == {"default": {"ready": 0, "running": 0, "done": PAGE}}


async def test_complete_is_counted_adds_an_event_and_sums_the_run_time(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b", queue="other"))
    a, b = await worker.lease(2)
    clock.advance(120)
    await worker.complete(a)
    await worker.complete(b)
    assert (await happened(engine))[4:] == [("complete", "a", ""), ("complete", "b", "")]
    counts = await Views(engine).counts()
    assert [counts[queue]["done"] for queue in ("default", "other")] == [1, 1]
    stats = await (await raw(engine)).hgetall(engine.keys("stats"))
    assert stats[f"{clock() // 60_000}\x1fdefault\x1frun".encode()] == b"120"
    assert stats[f"{clock() // 60_000}\x1fdefault\x1frun 500".encode()] == b"1"
    assert stats[f"{clock() // 60_000}\x1fother\x1fcomplete".encode()] == b"1"
