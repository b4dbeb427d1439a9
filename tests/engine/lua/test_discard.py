"""discard: a finished job becomes a tombstone before its time."""

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from tests.engine.factories import (
    HOLD,
    TestWorker,
    dump,
    enqueue,
    happened,
    header_of,
    new_job,
    open_batch,
    populate,
    raw,
)


async def test_discard_removes_what_is_stored_of_a_job_but_its_id(engine: Engine) -> None:
    await populate(engine)
    assert await engine.discard(["dead", "done", "cancelled"]) == ["ok"] * 3
    record = await Views(engine).job("dead")
    assert record is not None
    assert (record.payload, record.result, record.attempts) == (None, None, [])
    assert record.header.compact == 1
    (placed,) = await engine.enqueue([new_job("dead", nonce="another")])
    assert placed.word == "exists"
    assert ("discard", "dead", "") in await happened(engine)


async def test_discard_leaves_an_unfinished_job(engine: Engine) -> None:
    await populate(engine)
    assert await engine.discard(["ready", "running", "scheduled", "missing"]) == [
        *("ready", "running", "scheduled", "missing")
    ]


async def test_a_second_call_says_the_same_and_changes_nothing(engine: Engine) -> None:
    await populate(engine)
    await engine.discard(["dead"])
    before = await dump(engine)
    assert await engine.discard(["dead"]) == ["ok"]
    assert await dump(engine) == before


async def test_discard_of_a_dead_job_that_held_up_its_lane_frees_the_lane(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("first", lanes=[HOLD]), new_job("second", lanes=[HOLD]))
    (first,) = await worker.lease()
    await worker.bury(first)
    assert await worker.lease() == []
    await engine.discard(["first"])
    assert [lease.id for lease in await worker.lease()] == ["second"]
    assert (await header_of(engine, "second")).state == "running"


async def test_discard_removes_the_error_from_the_groups(engine: Engine) -> None:
    await populate(engine)
    client = await raw(engine)
    assert await client.zcard(engine.keys("deaths")) == 2
    await engine.discard(["dead"])
    assert await client.zcard(engine.keys("deaths")) == 1


async def test_a_member_stays_until_its_batch_has_ended(engine: Engine) -> None:
    await open_batch(engine, "b", new_job("a"), then=False)
    await engine.cancel(["a"])
    assert await engine.discard(["a"]) == ["needed"]
    await engine.seal_batch("b")
    assert await engine.discard(["a"]) == ["ok"]
