"""retry_batch: the dead members of a batch run again, and the batch ends once more."""

from penstock.engine.engine import Engine, Retention
from penstock.engine.repair.audit import audit
from penstock.engine.repair.reconcile import reconcile
from tests.conftest import Clock
from tests.engine.factories import TestWorker, batch_of, made_by, new_job, numbers_of, open_batch, states


async def _failed(engine: Engine, how_many: int) -> TestWorker:
    worker = await TestWorker(engine, queues=("default",)).register()
    await open_batch(engine, "b", *(new_job(f"j{n}") for n in range(how_many)))
    for _ in range(how_many):
        for lease in await worker.lease():
            await worker.bury(lease)
    await engine.seal_batch("b")
    assert await numbers_of(engine, "b") == ("ended", how_many, 0, how_many, 0, 0)
    return worker


async def test_a_batch_does_not_end_before_all_dead_members_were_retried(engine: Engine) -> None:
    worker = await _failed(engine, 5)
    assert await engine.retry_batch("b", "x") == "ok"
    assert (await batch_of(engine, "b")).generation == 2
    while (await engine.do_chores("retry", "b", limit=2)).more:
        for lease in await worker.lease(10):
            await worker.complete(lease)
        assert (await batch_of(engine, "b")).phase == "sealed"
    for lease in await worker.lease(10):
        await worker.complete(lease)
    assert await numbers_of(engine, "b") == ("ended", 5, 5, 0, 0, 0)
    assert (await made_by(engine, "b")).keys() == {"then-1", "then-2", "on_failure-1"}
    assert (await made_by(engine, "b"))["then-2"].done == 5


async def test_a_member_that_dies_again_stays_dead_and_counts_in_the_next_end(engine: Engine) -> None:
    worker = await _failed(engine, 2)
    assert await engine.retry_batch("b", "x") == "ok"
    assert not (await engine.do_chores("retry", "b")).more
    for lease in await worker.lease(10):
        await worker.bury(lease)
    assert await engine.retry_batch("b", "x") == "ok"  # the same call, resent
    assert await numbers_of(engine, "b") == ("ended", 2, 0, 2, 0, 0)
    assert (await made_by(engine, "b")).keys() == {"then-1", "then-2", "on_failure-1", "on_failure-2"}


async def test_retry_batch_without_dead_members_changes_nothing(engine: Engine) -> None:
    await open_batch(engine, "b", new_job("a"))
    assert await engine.retry_batch("b", "x") == "none"
    assert await engine.retry_batch("nobody", "x") == "missing"
    await engine.cancel_batch("b")
    assert await engine.retry_batch("b", "y") == "cancelling"


async def test_batches_inside_the_batch_are_retried_too(engine: Engine) -> None:
    worker = await TestWorker(engine, queues=("default",)).register()
    await open_batch(engine, "outer")
    await open_batch(engine, "inner", new_job("a"), parent="outer")
    (lease,) = await worker.lease()
    await worker.bury(lease)
    await engine.seal_batch("inner")
    await engine.seal_batch("outer")
    assert await engine.retry_batch("outer", "x") == "ok"
    await engine.do_chores("retry", "outer")
    await engine.do_chores("retry", "inner")
    assert await numbers_of(engine, "outer") == ("sealed", 1, 0, 0, 0, 1)
    (lease,) = await worker.lease()
    await worker.complete(lease)
    assert await numbers_of(engine, "outer") == ("ended", 1, 1, 0, 0, 0)
    assert (await states(engine)).keys() >= {"outer@then-2", "inner@then-2"}


async def test_a_second_retry_batch_goes_back_to_members_that_the_first_has_passed(engine: Engine) -> None:
    worker = await _failed(engine, 4)
    await engine.retry_batch("b", "x")
    await engine.do_chores("retry", "b", limit=3)
    for lease in await worker.lease(10):
        await worker.bury(lease)
    assert await engine.retry_batch("b", "y") == "ok"
    while (await engine.do_chores("retry", "b", limit=3)).more:
        pass
    assert await numbers_of(engine, "b") == ("sealed", 4, 0, 0, 0, 4)


async def test_a_cancelled_batch_retries_no_member_before_it_has_ended(engine: Engine) -> None:
    worker = await TestWorker(engine, queues=("default",)).register()
    await open_batch(engine, "b", new_job("dead"), new_job("running"))
    dead, running = await worker.lease(2)
    await worker.bury(dead)
    await engine.cancel_batch("b")
    assert not (await engine.do_chores("cancel", "b")).more
    assert await engine.retry_batch("b", "x") == "cancelling"
    assert await worker.release(running) == "cancelled"
    assert await numbers_of(engine, "b") == ("ended", 2, 0, 1, 1, 0)
    assert await engine.retry_batch("b", "x") == "ok"


async def test_members_that_were_forgotten_still_count_in_the_next_generation(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine, queues=("default",)).register()
    await open_batch(engine, "b", new_job("a", keep=0), new_job("dead"))
    first, second = await worker.lease(2)
    await worker.complete(first)
    await worker.bury(second)
    await engine.seal_batch("b")
    clock.advance(2_000)
    for _ in range(2):
        await engine.prune(Retention(tomb_life=1_000))
    assert "a" not in await states(engine)
    await engine.retry_batch("b", "x")
    await engine.do_chores("retry", "b")
    assert await numbers_of(engine, "b") == ("sealed", 2, 1, 0, 0, 1)
    assert await audit(engine) == []
    assert await reconcile(engine) == 0
    assert await numbers_of(engine, "b") == ("sealed", 2, 1, 0, 0, 1)


async def test_a_new_job_with_the_id_of_a_forgotten_member_is_not_retried(engine: Engine, clock: Clock) -> None:
    worker = await _failed(engine, 1)
    await engine.discard(["j0"])
    clock.advance(2_000)
    await engine.prune(Retention(tomb_life=1_000))
    await engine.enqueue([new_job("j0")])
    (lease,) = await worker.lease()
    await worker.bury(lease)
    assert await audit(engine) == []
    await engine.retry_batch("b", "x")
    await engine.do_chores("retry", "b")
    assert (await states(engine))["j0"] == "dead"
    assert await numbers_of(engine, "b") == ("ended", 1, 0, 1, 0, 0)
    assert await audit(engine) == []
