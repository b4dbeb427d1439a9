"""resume: a paused queue goes on, and idle workers are woken."""

import msgspec

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from tests.engine.factories import TestWorker, dump, enqueue, listening, new_job, raw


async def test_a_resumed_queue_is_leased_in_its_old_order(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    await engine.pause("default")
    await enqueue(engine, new_job("c"), new_job("urgent", priority=0))
    assert await engine.resume("default") == "ok"
    assert await Views(engine).queues() == {"default": False}
    assert [lease.id for lease in await worker.lease(9)] == ["urgent", "a", "b", "c"]


async def test_a_queue_that_is_not_paused_stays_as_it_is(engine: Engine) -> None:
    await enqueue(engine, new_job())
    before = await dump(engine)
    assert [await engine.resume(queue) for queue in ("default", "unknown")] == ["open", "open"]
    assert await dump(engine) == before


async def test_resume_wakes_as_many_idle_workers_as_jobs_wait(engine: Engine) -> None:
    await engine.pause("default")
    for name in ("w1", "w2"):
        await (await TestWorker(engine, name).register()).lease()
    await engine.pause("empty")
    async with (
        listening(engine, engine.keys.channel("w1")) as first,
        listening(engine, engine.keys.channel("w2")) as second,
    ):
        await engine.resume("empty")
        assert [await first.messages(), await second.messages()] == [[], []]
        await enqueue(engine, new_job())
        # Whoever was woken for a job of the paused queue found nothing and sleeps again.
        for name in ("w1", "w2"):
            await engine.lease(name, 2)
        assert len(await first.messages() + await second.messages()) <= 1
        await engine.resume("default")
        assert sorted([await first.messages(), await second.messages()]) == [[], ["work"]]


async def test_resume_adds_one_event(engine: Engine) -> None:
    await engine.pause("default")
    await engine.resume("default")
    last = await (await raw(engine)).xrevrange(engine.keys("events"), count=1)
    _, groups = msgspec.msgpack.decode(last[0][1][b"e"])
    assert groups[0][:2] == ["resume", "default"]
