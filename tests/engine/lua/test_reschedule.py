"""reschedule: scheduled or ready → scheduled at another time, or → ready if that is not in the future."""

from penstock.engine.engine import Engine
from tests.conftest import Clock
from tests.engine.factories import TestWorker, enqueue, happened, header_of, listening, new_job, states


async def test_a_scheduled_job_is_due_at_another_time(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a", due=5_000), new_job("b", due=5_000))
    assert await engine.reschedule(["a"], 1_000) == ["ok"]
    assert await engine.reschedule(["b"], clock() + 9_000) == ["ok"]
    assert (await header_of(engine, "a")).due == clock() + 1_000
    clock.advance(1_000)
    assert (await engine.promote())[:2] == (1, clock() + 8_000)
    assert await states(engine) == {"a": "ready", "b": "scheduled"}


async def test_a_job_that_is_rescheduled_to_now_goes_to_the_tail_of_its_queue(engine: Engine) -> None:
    await enqueue(engine, new_job("a", due=5_000), new_job("b"))
    assert await engine.reschedule(["a"], 0) == ["ok"]
    worker = await TestWorker(engine).register()
    assert [lease.id for lease in await worker.lease(2)] == ["b", "a"]


async def test_a_ready_job_can_be_put_off_and_otherwise_keeps_its_place(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a"), new_job("b"), new_job("c"))
    assert await engine.reschedule(["a"], 0) == ["ok"]
    assert await engine.reschedule(["b"], 1_000) == ["ok"]
    worker = await TestWorker(engine).register()
    assert [lease.id for lease in await worker.lease(3)] == ["a", "c"]
    assert (await header_of(engine, "b")).due == clock() + 1_000


async def test_expiry_unique_key_and_attempts_stay(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", expires=9_000, unique="u"))
    await worker.retry((await worker.lease())[0], 5_000)
    assert await engine.reschedule(["a"], 8_000) == ["ok"]
    header = await header_of(engine, "a")
    assert (header.failures, header.expires, header.unique) == (1, clock() + 9_000, "u")
    clock.advance(9_000)
    assert (await engine.expire())[0] == 1


async def test_reschedule_of_a_job_that_does_not_wait_answers_its_state(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    await worker.complete((await worker.lease())[0])
    await worker.lease()
    assert await engine.reschedule(["a", "b", "c"], 0) == ["done", "running", "missing"]


async def test_an_earlier_due_time_is_published_to_the_timers_and_adds_an_event(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a", due=5_000))
    async with listening(engine, engine.keys.timer) as timer:
        await engine.reschedule(["a"], 2_000)
        assert await timer.messages() == [str(clock() + 2_000)]
    assert (await happened(engine))[1:] == [("reschedule", "a", "")]
