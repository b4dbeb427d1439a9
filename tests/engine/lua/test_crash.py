"""crash: the process of a job died and its worker lives: the job goes back to its place, or is dead after too many."""

from penstock.engine.engine import MAX_CRASHES, Engine
from penstock.engine.read.views import Views
from penstock.model.header import Attempt
from tests.conftest import Clock
from tests.engine.factories import TestWorker, call_of, enqueue, happened, header_of, new_job, states


async def test_a_crashed_job_goes_back_to_where_it_stood_and_is_charged(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a"), new_job("b"))
    (lease,) = await worker.lease()
    clock.advance(10)
    assert await worker.crash(lease, '"signal 11"') == "ok"
    record = await Views(engine).job("a")
    assert record is not None
    assert (record.header.state, record.header.crashes, record.header.failures) == ("ready", 1, 0)
    assert record.attempts == [Attempt(1, clock() - 10, clock(), "w", "crash", '"signal 11"')]
    assert [lease.id for lease in await worker.lease(2)] == ["a", "b"]


async def test_a_job_is_buried_after_too_many_crashes_of_any_kind(engine: Engine) -> None:
    await enqueue(engine, new_job("a", retries=9, payload=b"bytes"))
    dying = await TestWorker(engine).register()
    await dying.lease()
    await engine.reap_worker(dying.name, ["a"], 1_000)
    worker = await TestWorker(engine).register()
    for _ in range(MAX_CRASHES - 1):
        await worker.crash((await worker.lease())[0])
    record = await Views(engine).job("a")
    assert record is not None
    assert (record.header.state, record.header.reason, record.header.crashes) == ("dead", "crash_loop", MAX_CRASHES)
    assert record.payload == b"bytes"


async def test_a_job_whose_cancelling_was_asked_for_is_cancelled_instead(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    await engine.cancel(["a"], "changed my mind")
    assert await worker.crash(lease) == "cancelled"
    header = await header_of(engine, "a")
    assert (header.state, header.crashes, header.attempt) == ("cancelled", 0, 1)


async def test_a_second_crash_of_the_same_attempt_gets_the_first_answer_and_charges_nothing(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    assert [await worker.crash(lease), await worker.crash(lease)] == ["ok", "ok"]
    assert (await header_of(engine, "a")).crashes == 1


async def test_a_stale_job_does_not_affect_the_rest_of_its_page(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("done"))
    a, done = await worker.lease(2)
    await worker.complete(done)
    assert await engine.crash(worker.name, [(one.id, call_of(one), "{}") for one in (done, a)]) == ["stale", "ok"]
    assert await states(engine) == {"a": "ready", "done": "done"}


async def test_crash_is_counted_and_adds_an_event(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await worker.crash((await worker.lease())[0])
    assert (await happened(engine))[2:] == [("crash", "a", "crash")]
    assert await Views(engine).counts() == {"default": {"ready": 1, "running": 0}}
