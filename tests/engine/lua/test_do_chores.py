"""do_chores: work on batches in pages; test_cancel_batch and test_retry_batch have the rest."""

from penstock.engine.engine import Engine
from tests.conftest import Clock
from tests.engine.factories import TestWorker, new_job, open_batch, raw, states


async def test_do_chores_does_nothing_when_no_batch_has_work(engine: Engine, clock: Clock) -> None:
    assert await engine.do_chores() == (0, -1, clock(), False)
    assert await engine.do_chores("cancel", "nobody") == (0, -1, clock(), False)


async def test_a_chore_that_is_not_needed_any_more_is_dropped(engine: Engine, clock: Clock) -> None:
    await open_batch(engine, "b", new_job("a"))
    for chore in ("retry\x1fb", "cancel\x1fnobody", "nonsense"):
        await (await raw(engine)).zadd(engine.keys("chores"), {chore: 0})
    for _ in range(3):
        assert (await engine.do_chores()).moved == 1
    assert (await engine.do_chores()).moved == 0


async def test_a_batch_inside_another_is_kept_until_the_outer_one_ends(engine: Engine, clock: Clock) -> None:
    await open_batch(engine, "outer")
    await open_batch(engine, "inner", parent="outer", keep=1_000, then=False)
    await engine.seal_batch("inner")
    clock.advance(1_000)
    assert (await engine.do_chores()).next == clock() + 60_000
    await engine.seal_batch("outer")
    clock.advance(60_000)
    await engine.do_chores()
    assert (await engine.watch_batch("c", "inner")).status is None


async def test_jobs_of_a_forgotten_batch_go_on_though_its_limit_was_zero(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "b", new_job("a"), keep=1_000, then=False)
    await engine.cancel(["a"])
    await engine.seal_batch("b")
    clock.advance(1_000)
    await engine.do_chores()
    await open_batch(engine, "b", keep=1_000, then=False)  # another one
    await engine.set_batch("b", limit=0)
    await engine.seal_batch("b")
    assert await engine.revive(["a"]) == ["ok"]
    assert await states(engine) == {"a": "held"}
    clock.advance(1_000)
    await engine.do_chores()
    assert [lease.id for lease in await worker.lease()] == ["a"]
