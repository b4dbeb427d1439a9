"""revive: dead or cancelled → ready, at the tail of its queue, with a fresh budget."""

import pytest

from penstock.engine.engine import PAGE, Edit, Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.reconcile import reconcile
from tests.conftest import Clock
from tests.engine.factories import (
    HOLD,
    LARGE,
    LIFE,
    TestWorker,
    dump,
    enqueue,
    happened,
    header_of,
    listening,
    new_job,
    populate,
    spoil,
)


async def test_a_dead_job_begins_anew_behind_the_others(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", payload=b"bytes", expires=1_000, retries=2))
    await worker.retry((await worker.lease())[0])
    await worker.bury((await worker.lease())[0], "failed")
    await enqueue(engine, new_job("b"))
    clock.advance(60_000)
    assert await engine.revive(["a"]) == ["ok"]
    record = await Views(engine).job("a")
    assert record is not None
    header = record.header
    assert (header.state, header.reason, header.generation, header.expires) == ("ready", "", 1, 0)
    assert (header.failures, header.crashes, header.releases, header.starts) == (0, 0, 0, 0)
    assert (header.retries, header.since, record.payload) == (2, clock(), b"bytes")
    assert [(lease.id, lease.header.attempt) for lease in await worker.lease(9)] == [("b", 1), ("a", 1)]


async def test_a_cancelled_job_can_be_revived_and_ended_and_revived_again(engine: Engine) -> None:
    await enqueue(engine, new_job("a"))
    for generation in (1, 2, 3):
        assert await engine.cancel(["a"]) == ["cancelled"]
        assert await engine.revive(["a"]) == ["ok"]
        assert (await header_of(engine, "a")).generation == generation


async def test_a_cancelled_job_that_had_been_put_off_is_due_at_once(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", due=60_000))
    await engine.cancel(["a"])
    assert await engine.revive(["a"]) == ["ok"]
    (lease,) = await worker.lease()
    assert lease.header.due <= clock()


async def test_a_job_buried_for_its_crashes_may_crash_anew(engine: Engine) -> None:
    await enqueue(engine, new_job("a"))
    for _ in range(2):
        for _ in range(3):
            worker = await TestWorker(engine).register()
            await worker.lease()
            await engine.reap_worker(worker.name, ["a"], LIFE)
        assert (await header_of(engine, "a")).reason == "crash_loop"
        assert await engine.revive(["a"]) == ["ok"]
    assert (await header_of(engine, "a")).crashes == 0


async def test_a_settle_of_its_former_life_is_stale(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    await worker.bury(lease)
    await engine.revive(["a"])
    assert await worker.bury(lease) == "stale"


async def test_a_revived_job_takes_its_unique_key_again_if_it_is_free(engine: Engine) -> None:
    await enqueue(engine, new_job("a", unique="u"))
    await engine.cancel(["a"])
    await enqueue(engine, new_job("b", unique="u"))
    before = await dump(engine)
    assert await engine.revive(["a"]) == ["taken"]
    assert await dump(engine) == before
    await engine.cancel(["b"])
    assert await engine.revive(["a", "b"]) == ["ok", "taken"]
    assert await enqueue(engine, new_job("c", unique="u")) == ["a"]


async def test_revive_of_any_other_job_answers_why_not_and_changes_nothing(engine: Engine) -> None:
    await populate(engine)
    before = await dump(engine)
    answers = {
        "ready": "ready",
        "scheduled": "scheduled",
        "running": "running",
        "cancelling": "running",
        "done": "done",
        "tomb": "missing",
        "never-was": "missing",
    }
    assert await engine.revive(list(answers)) == list(answers.values())
    assert await dump(engine) == before


async def test_an_id_twice_in_a_page_is_revived_once(engine: Engine) -> None:
    await enqueue(engine, new_job("a"))
    await engine.cancel(["a"])
    assert await engine.revive(["a", "a"]) == ["ok", "ready"]
    assert (await header_of(engine, "a")).generation == 1


async def test_a_header_that_cannot_be_read_is_missing_and_delays_no_other_job(engine: Engine) -> None:
    await enqueue(engine, new_job("spoilt", payload=LARGE), new_job("a"))
    await engine.cancel(["spoilt", "a"])
    await spoil(engine, "spoilt")
    assert await engine.revive(["spoilt", "a"]) == ["missing", "ok"]
    await reconcile(engine)
    assert await engine.revive(["spoilt"]) == ["ok"]


async def test_more_than_a_page_is_refused_before_anything_is_sent(engine: Engine) -> None:
    with pytest.raises(ValueError, match=f"at most {PAGE}"):
        engine.revive([str(i) for i in range(PAGE + 1)])
    ids = await enqueue(engine, *(new_job() for _ in range(PAGE)))
    await engine.cancel(ids)
    assert await engine.revive(ids) == ["ok"] * PAGE


async def test_revive_wakes_workers_is_counted_and_adds_an_event(engine: Engine) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a"))
    await engine.cancel(["a"])
    await worker.lease()
    async with listening(engine, engine.keys.channel("w")) as subscription:
        await engine.revive(["a"])
        assert await subscription.messages() == ["work"]
    assert (await happened(engine))[2:] == [("revive", "a", "")]
    assert await Views(engine).counts() == {"default": {"ready": 1, "cancelled": 0}}


async def test_a_revived_job_may_get_other_arguments_and_the_lanes_and_unique_key_of_them(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", unique="old", lanes=["lock:old"]))
    (lease,) = await worker.lease()
    await worker.bury(lease)
    assert await engine.revive(["a"], {"a": Edit(b"other", ["lock:new"], "new")}) == ["ok"]
    header = await header_of(engine, "a")
    assert (header.lanes, header.unique, header.size, header.state) == (["lock:new"], "new", 5, "ready")
    assert [lease.payload for lease in await worker.lease()] == [b"other"]


async def test_other_arguments_without_their_task_leave_lanes_and_unique_key_as_they_were(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", unique="u", lanes=[HOLD]), new_job("b", lanes=[HOLD]))
    (lease,) = await worker.lease()
    await worker.bury(lease)
    assert await engine.revive(["a"], {"a": Edit(b"other")}) == ["ok"]
    assert [(lease.id, lease.payload) for lease in await worker.lease(9)] == [("a", b"other")]


async def test_a_revived_job_gives_up_its_turn_with_its_lane(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", lanes=[HOLD]), new_job("b", lanes=[HOLD]))
    (lease,) = await worker.lease()
    await worker.bury(lease)
    await engine.revive(["a"], {"a": Edit(b"other", [])})
    assert {lease.id for lease in await worker.lease(9)} == {"a", "b"}
