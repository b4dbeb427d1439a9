"""progress: how far a running attempt has come."""

from penstock.engine.engine import Engine
from tests.conftest import Clock
from tests.engine.factories import TestWorker, call_of, dump, enqueue, happened, header_of, new_job, rewrite


async def test_progress_is_kept_with_the_job_and_replaced_by_the_next(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    clock.advance(10)
    for progress in ("[1,3]", "[2,3]"):
        assert await engine.progress(worker.name, "a", call_of(lease), progress) == "ok"
        header = await header_of(engine, "a")
        assert header.progress == progress
    assert (header.state, header.since, header.claim) == ("running", lease.header.since, lease.header.claim)


async def test_progress_changes_nothing_else_but_the_events(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    (lease,) = await worker.lease()
    await rewrite(engine, "a")  # in the form in which progress stores it
    before = await dump(engine)
    await engine.progress(worker.name, "a", call_of(lease), "[1,2]")
    await rewrite(engine, "a", progress="")
    after = await dump(engine)
    assert {key for key in before if before[key] != after[key]} == {engine.keys("events"), engine.keys("stats")}


async def test_progress_answers_that_the_job_is_to_be_cancelled(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    await engine.cancel(["a"])
    assert await engine.progress(worker.name, "a", call_of(lease), "[1,2]") == "cancelling"
    assert (await header_of(engine, "a")).progress == "[1,2]"


async def test_progress_stays_when_the_job_is_done(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    await engine.progress(worker.name, "a", call_of(lease), "[3,3]")
    await worker.complete(lease)
    assert (await header_of(engine, "a")).progress == "[3,3]"


async def test_progress_adds_an_event_with_its_text(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    await engine.progress(worker.name, "a", call_of(lease), '[1,2,"half"]')
    assert (await happened(engine))[2:] == [("progress", "a", '[1,2,"half"]')]
