"""pause: no job of the queue is leased from now on; running jobs go on."""

import msgspec

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from tests.engine.factories import TestWorker, dump, enqueue, new_job, raw, states


async def test_a_paused_queue_keeps_its_jobs_and_what_runs_goes_on(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("running"), new_job("waiting"), new_job("elsewhere", queue="other"))
    (lease,) = await worker.lease()
    assert await engine.pause("default") == "ok"
    assert [lease.id for lease in await worker.lease(9)] == ["elsewhere"]
    assert await worker.complete(lease) == "ok"
    assert await states(engine) == {"running": "done", "waiting": "ready", "elsewhere": "running"}


async def test_jobs_go_on_coming_due_and_going_back_into_a_paused_queue(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    a, b = await worker.lease(2)
    await engine.pause("default")
    assert [await worker.release(a), await worker.retry(b)] == ["ok", "ok"]
    assert await worker.lease(9) == []


async def test_pausing_twice_says_so_and_changes_nothing(engine: Engine) -> None:
    assert await engine.pause("default") == "ok"
    before = await dump(engine)
    assert await engine.pause("default") == "paused"
    assert await dump(engine) == before


async def test_a_queue_can_be_paused_before_its_first_job(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await engine.pause("new")
    await enqueue(engine, new_job("a", queue="new"))
    assert await worker.lease() == []
    assert await Views(engine).queues() == {"new": True}


async def test_pause_adds_one_event(engine: Engine) -> None:
    await engine.pause("default")
    last = await (await raw(engine)).xrevrange(engine.keys("events"), count=1)
    _, groups = msgspec.msgpack.decode(last[0][1][b"e"])
    assert groups[0][:2] == ["pause", "default"]
