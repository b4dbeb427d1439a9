"""cancel_batch: one small step, however many members there are; these are cancelled in pages."""

from penstock.engine.engine import Engine
from tests.conftest import Clock
from tests.engine.factories import TestWorker, batch_of, enqueue, made_by, new_job, numbers_of, open_batch, states


async def test_no_member_starts_after_a_cancel_and_members_end_page_by_page(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "b", *(new_job(f"j{n:02}") for n in range(25)))
    (running,) = await worker.lease()
    assert await engine.cancel_batch("b", "enough") == "cancelled"
    assert await worker.lease(10) == []
    placed = await engine.enqueue([new_job("late", batch="b")])
    assert placed[0].word == "cancelled"
    pages = 0
    while (await engine.do_chores("cancel", "b", limit=10)).more:
        pages += 1
    assert pages == 2
    assert await numbers_of(engine, "b") == ("sealed", 25, 0, 0, 24, 1)
    assert await worker.retry(running) == "cancelled"
    assert await numbers_of(engine, "b") == ("ended", 25, 0, 0, 25, 0)
    assert (await made_by(engine, "b"))["then-1"].reason == "enough"
    assert await engine.cancel_batch("b") == "ended"
    assert await engine.cancel_batch("nobody") == "missing"


async def test_a_timer_goes_on_where_the_caller_was_lost(engine: Engine, clock: Clock) -> None:
    await open_batch(engine, "b", *(new_job(f"j{n}") for n in range(5)))
    await engine.cancel_batch("b")
    await engine.do_chores("cancel", "b", limit=2)
    assert (await engine.do_chores()).moved == 0
    clock.advance(2_000)
    while (await engine.do_chores(limit=2)).next <= clock():
        pass
    assert await numbers_of(engine, "b") == ("ended", 5, 0, 0, 5, 0)


async def test_an_empty_batch_ends_at_once_and_a_second_call_changes_nothing(engine: Engine) -> None:
    await open_batch(engine, "b")
    assert await engine.cancel_batch("b") == "cancelled"
    assert (await batch_of(engine, "b")).phase == "ended"


async def test_batches_inside_are_cancelled_too(engine: Engine, clock: Clock) -> None:
    await open_batch(engine, "outer", new_job("a"))
    await open_batch(engine, "inner", new_job("b"), parent="outer")
    await engine.cancel_batch("outer")
    await engine.do_chores("cancel", "outer")
    clock.advance(2_000)
    await engine.do_chores()
    assert await numbers_of(engine, "inner") == ("ended", 1, 0, 0, 1, 0)
    assert await numbers_of(engine, "outer") == ("ended", 2, 0, 0, 2, 0)


async def test_a_member_that_is_run_again_later_runs(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "b", new_job("a"), new_job("c"), then=False)
    await engine.cancel_batch("b")
    await engine.do_chores("cancel", "b")
    await engine.revive(["a"])
    assert (await batch_of(engine, "b")).reason == ""
    (lease,) = await worker.lease()
    await worker.complete(lease)
    assert await numbers_of(engine, "b") == ("ended", 2, 1, 0, 1, 0)
    await enqueue(engine, new_job("plain"))
    assert (await states(engine))["plain"] == "ready"


async def test_a_member_that_is_run_again_meanwhile_is_shown_when_the_lane_opens(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "b", new_job("a"), new_job("c"))
    await engine.cancel_batch("b")
    await engine.do_chores("cancel", "b", limit=1)
    assert await engine.revive(["a"]) == ["ok"]
    assert await worker.lease() == []
    assert not (await engine.do_chores("cancel", "b")).more
    assert [lease.id for lease in await worker.lease()] == ["a"]
