"""cancel: a waiting job is cancelled; a running job is flagged, and its worker gets a message."""

import pytest

from penstock.engine.engine import PAGE, Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.reconcile import reconcile
from tests.conftest import Clock
from tests.engine.factories import (
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


@pytest.mark.parametrize("due", [0, 5_000], ids=["ready", "scheduled"])
async def test_a_waiting_job_is_cancelled_and_lets_go_of_what_it_held(engine: Engine, clock: Clock, due: int) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", due=due, unique="u", expires=9_000, keep=60_000))
    clock.advance(10)
    assert await engine.cancel(["a"], "changed my mind") == ["cancelled"]
    record = await Views(engine).job("a")
    assert record is not None
    assert (record.header.state, record.header.reason, record.header.since) == ("cancelled", "changed my mind", clock())
    assert record.payload == b"payload"
    assert await enqueue(engine, new_job("b", unique="u", due=1)) == ["b"]
    clock.advance(9_000)
    assert (await engine.promote())[0] == 1
    assert (await engine.expire())[:2] == (0, -1)
    assert [lease.id for lease in await worker.lease(9)] == ["b"]


async def test_a_running_job_is_flagged_its_worker_notified_and_nothing_else_changes(engine: Engine) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a", unique="u"), new_job("b"))
    (lease,) = await worker.lease()
    async with listening(engine, engine.keys.channel("w")) as subscription:
        assert await engine.cancel(["a", "b"], "changed my mind") == ["cancelling", "cancelled"]
        assert await subscription.messages() == ["cancel a"]
    header = await header_of(engine, "a")
    assert (header.state, header.cancelling, header.reason) == ("running", 1, "changed my mind")
    assert (header.claim, header.since) == (lease.header.claim, lease.header.since)
    assert (await engine.renew(LIFE, ["w"])).cancelling == [("w", "a")]
    assert await enqueue(engine, new_job("c", unique="u")) == ["a"]


async def test_a_job_is_flagged_once_with_the_first_reason(engine: Engine) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    await engine.cancel(["a"], "first")
    before = await dump(engine)
    async with listening(engine, engine.keys.channel("w")) as subscription:
        assert await engine.cancel(["a"], "second") == ["cancelling"]
        assert await subscription.messages() == []
    assert await dump(engine) == before


async def test_cancel_of_a_finished_job_answers_its_state_and_changes_nothing(engine: Engine) -> None:
    await populate(engine)
    before = await dump(engine)
    ended = {"done": "done", "dead": "dead", "cancelled": "cancelled", "tomb": "cancelled", "never-was": "missing"}
    assert await engine.cancel(list(ended), "again") == list(ended.values())
    assert await dump(engine) == before


async def test_an_id_twice_in_a_page_is_cancelled_once(engine: Engine) -> None:
    await enqueue(engine, new_job("a"))
    assert await engine.cancel(["a", "a"]) == ["cancelled", "cancelled"]
    assert await Views(engine).counts() == {"default": {"ready": 0, "cancelled": 1}}


async def test_a_header_that_cannot_be_read_is_missing_and_delays_no_other_job(engine: Engine) -> None:
    await enqueue(engine, new_job("spoilt"), new_job("a"))
    await spoil(engine, "spoilt")
    assert await engine.cancel(["spoilt", "a"]) == ["missing", "cancelled"]
    await reconcile(engine)


async def test_more_than_a_page_is_refused_before_anything_is_sent(engine: Engine) -> None:
    with pytest.raises(ValueError, match=f"at most {PAGE}"):
        engine.cancel([str(i) for i in range(PAGE + 1)])
    ids = await enqueue(engine, *(new_job() for _ in range(PAGE)))
    assert await engine.cancel(ids) == ["cancelled"] * PAGE


async def test_cancel_is_counted_and_adds_an_event(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    await worker.lease()
    await engine.cancel(["a", "b"], "why not")
    assert (await happened(engine))[3:] == [("cancel", "a", "cancelling"), ("cancel", "b", "why not")]
    assert await Views(engine).counts() == {"default": {"ready": 0, "running": 1, "cancelled": 1}}
