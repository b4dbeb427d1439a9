"""open_batch: a batch begins, alone or inside another."""

import pytest

from penstock.engine.engine import MAX_BATCH_DEPTH, Engine
from penstock.engine.repair.audit import audit
from penstock.engine.repair.reconcile import reconcile
from tests.conftest import Clock
from tests.engine.factories import (
    TestWorker,
    batch_of,
    happened,
    header_of,
    made_by,
    new_batch,
    new_job,
    numbers_of,
    open_batch,
)


async def test_an_open_batch_counts_its_members_as_they_come(engine: Engine) -> None:
    await open_batch(engine, "b", new_job("a"), new_job("later", due=5_000))
    assert await numbers_of(engine, "b") == ("open", 2, 0, 0, 0, 2)
    assert ("open_batch", "b", "") in await happened(engine)


async def test_a_resent_call_gets_its_first_answer_and_another_one_does_not(engine: Engine) -> None:
    assert await engine.open_batch(new_batch("b", nonce="x")) == "created"
    assert await engine.open_batch(new_batch("b", nonce="x")) == "created"
    assert await engine.open_batch(new_batch("b", nonce="y")) == "exists"


async def test_a_batch_inside_another_is_one_member_of_it(engine: Engine) -> None:
    await open_batch(engine, "outer")
    await open_batch(engine, "inner", new_job("a"), new_job("b"), parent="outer")
    assert await numbers_of(engine, "outer") == ("open", 1, 0, 0, 0, 1)
    assert (await batch_of(engine, "inner")).depth == 2


async def test_a_batch_that_takes_no_members_takes_no_batch(engine: Engine) -> None:
    await open_batch(engine, "sealed", new_job("a"))
    await engine.seal_batch("sealed")
    await open_batch(engine, "ended")
    await engine.seal_batch("ended")
    await open_batch(engine, "called-off", new_job("b"))
    await engine.cancel_batch("called-off")
    words = {"sealed": "sealed", "ended": "ended", "called-off": "cancelled", "nobody": "unknown"}
    assert {word: await engine.open_batch(new_batch("x", parent=word)) for word in words} == words


async def test_batches_are_inside_each_other_up_to_a_depth(engine: Engine) -> None:
    await open_batch(engine, "b1")
    for depth in range(2, MAX_BATCH_DEPTH + 1):
        await open_batch(engine, f"b{depth}", parent=f"b{depth - 1}")
    assert await engine.open_batch(new_batch("too-deep", parent=f"b{MAX_BATCH_DEPTH}")) == "deep"
    for depth in range(MAX_BATCH_DEPTH, 0, -1):
        await engine.seal_batch(f"b{depth}")
    assert (await numbers_of(engine, "b1"))[:3] == ("ended", 1, 1)


@pytest.mark.parametrize("length", range(252, 258))
async def test_a_batchs_priority_fits_however_long_the_names_are(engine: Engine, length: int) -> None:
    await engine.open_batch(new_batch("b1", priority=7))
    job = new_job("a", task="t" * (length - len("\x1f\x1f\x1f\x1f\x1fb1")), batch="b1")
    assert [placed.word for placed in await engine.enqueue([job])] == ["created"]
    assert (await header_of(engine, "a")).priority == 7
    assert await audit(engine) == []


async def test_a_job_for_a_batch_that_does_not_take_it_is_refused_and_nothing_is_stored(engine: Engine) -> None:
    await open_batch(engine, "b", new_job("first"))
    await engine.seal_batch("b")
    placed = await engine.enqueue([new_job("first", batch="b"), new_job("a", batch="b"), new_job("c", batch="nobody")])
    assert [(answer.word, answer.id) for answer in placed] == [("created", "first"), ("sealed", "a"), ("unknown", "c")]
    assert await numbers_of(engine, "b") == ("sealed", 1, 0, 0, 0, 1)


async def test_a_unique_key_that_is_taken_gives_the_other_job_which_is_no_member(engine: Engine) -> None:
    await engine.enqueue([new_job("other", unique="u")])
    await open_batch(engine, "b")
    (placed,) = await engine.enqueue([new_job("a", batch="b", unique="u")])
    assert (placed.word, placed.id) == ("unique", "other")
    assert await numbers_of(engine, "b") == ("open", 0, 0, 0, 0, 0)


async def test_a_batch_that_nobody_adds_to_is_given_up_and_one_that_grows_is_not(engine: Engine, clock: Clock) -> None:
    await open_batch(engine, "b", new_job("a"), abandon_after=10_000)
    clock.advance(6_000)
    await engine.enqueue([new_job("c", batch="b")])
    clock.advance(6_000)
    due = await engine.do_chores()
    assert (due.moved, due.next - due.now) == (1, 4_000)
    assert (await batch_of(engine, "b")).phase == "open"
    clock.advance(4_000)
    await engine.do_chores()
    assert (await batch_of(engine, "b")).reason == "abandoned"
    assert ("cancel_batch", "b", "abandoned") in await happened(engine)
    clock.advance(2_000)
    while (await engine.do_chores(limit=1)).next <= clock():
        pass
    assert await numbers_of(engine, "b") == ("ended", 2, 0, 0, 2, 0)


async def _forget(engine: Engine, clock: Clock, batch_id: str) -> None:
    clock.advance(1_000)
    while (await engine.do_chores(limit=1)).moved:
        pass
    assert (await engine.watch_batch("c", batch_id)).status is None


async def test_an_id_that_is_used_again_gets_its_own_then_and_none_of_the_old_members(
    engine: Engine, clock: Clock
) -> None:
    worker = await TestWorker(engine, queues=("default",)).register()
    await open_batch(engine, "b", new_job("old"), keep=1_000)
    (lease,) = await worker.lease()
    await worker.bury(lease)
    await engine.seal_batch("b")
    await _forget(engine, clock, "b")
    await open_batch(engine, "b", new_job("young"), keep=1_000)
    assert await audit(engine) == []
    assert await engine.revive(["old"]) == ["ok"]
    assert await numbers_of(engine, "b") == ("open", 1, 0, 0, 0, 1)
    for lease in await worker.lease(5):
        await worker.complete(lease)
    await engine.seal_batch("b")
    assert await numbers_of(engine, "b") == ("ended", 1, 1, 0, 0, 0)
    created = (await batch_of(engine, "b")).created
    assert (await made_by(engine, "b")).keys() == {"then-1", "on_failure-1", f"then-1-{created}"}
    assert await audit(engine) == []
    assert await reconcile(engine) == 0


async def test_an_id_is_taken_until_all_of_the_batch_that_had_it_is_forgotten(engine: Engine, clock: Clock) -> None:
    await open_batch(engine, "b", *(new_job(f"j{n}") for n in range(5)), keep=1_000)
    await engine.cancel_batch("b")
    await engine.do_chores("cancel", "b")
    clock.advance(1_000)
    assert (await engine.do_chores(limit=2)).more
    assert await engine.open_batch(new_batch("b", nonce="another")) == "exists"
    await _forget(engine, clock, "b")
    assert await engine.open_batch(new_batch("b", nonce="another")) == "created"
    assert await audit(engine) == []


async def test_a_member_that_comes_by_a_clock_that_was_put_back_is_a_member(engine: Engine, clock: Clock) -> None:
    await open_batch(engine, "b")
    clock.advance(-5_000)
    worker = await TestWorker(engine, queues=("default",)).register()
    await engine.enqueue([new_job("a", batch="b")])
    (lease,) = await worker.lease()
    await worker.bury(lease)
    assert await engine.revive(["a"]) == ["ok"]
    assert await numbers_of(engine, "b") == ("open", 1, 0, 0, 0, 1)
    assert await audit(engine) == []
