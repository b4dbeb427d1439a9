"""transfer: moves waiting jobs to another queue, in the order of their arrival."""

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from tests.engine.factories import (
    LIMITED,
    ORDERED,
    TestWorker,
    dump,
    enqueue,
    happened,
    header_of,
    new_job,
    numbers_of,
    open_batch,
)


async def test_waiting_jobs_change_queues_and_keep_their_order_and_state(engine: Engine) -> None:
    await enqueue(engine, *(new_job(f"job{n}", queue="from") for n in range(3)), new_job("later", queue="from", due=9))
    await enqueue(engine, new_job("there", queue="to"))
    assert await engine.transfer(["job2", "job0", "later"], "to") == ["ok"] * 3
    worker = await TestWorker(engine, queues=("to",)).register()
    assert [lease.id for lease in await worker.lease(9)] == ["job0", "job2", "there"]
    assert (await header_of(engine, "later")).queue == "to"
    counts = await Views(engine).counts()
    assert {queue: {state: n for state, n in row.items() if n} for queue, row in counts.items()} == {
        "from": {"ready": 1},
        "to": {"scheduled": 1, "running": 3},
    }


async def test_transfer_leaves_a_job_that_does_not_wait(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("running"), new_job("cancelled", queue="other"))
    await worker.lease()
    await engine.cancel(["cancelled"])
    assert await engine.transfer(["running", "cancelled", "missing"], "to") == ["running", "cancelled", "missing"]


async def test_a_second_call_says_the_same_and_changes_nothing(engine: Engine) -> None:
    await enqueue(engine, new_job("a", unique="u", expires=60_000))
    assert await engine.transfer(["a"], "to") == ["ok"]
    before = await dump(engine)
    assert await engine.transfer(["a"], "to") == ["ok"]
    assert await dump(engine) == before
    assert ("transfer", "a", "") in await happened(engine)


async def test_jobs_that_are_held_by_their_lanes_wait_on_in_the_other_queue(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(f"job{n}", lanes=[ORDERED, LIMITED]) for n in range(3)))
    (first,) = await worker.lease()
    assert await engine.transfer(["job1", "job2"], "to") == ["ok", "ok"]
    assert await worker.lease(9) == []
    await worker.complete(first)
    (second,) = await worker.lease(9)
    await worker.complete(second)
    (third,) = await worker.lease(9)
    assert [second.id, third.id] == ["job1", "job2"]
    await worker.complete(third)


async def test_a_turn_that_was_taken_is_kept(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("first", lanes=[ORDERED]), new_job("second", lanes=[ORDERED]))
    (first,) = await worker.lease()
    await worker.retry(first, 60_000)
    await engine.transfer(["first"], "to")
    assert await worker.lease(9) == []
    await engine.reschedule(["first"], 0)
    assert [lease.id for lease in await worker.lease(9)] == ["first"]


async def test_a_member_of_a_batch_that_goes_to_another_queue_counts_once(engine: Engine) -> None:
    await open_batch(engine, "b", new_job("a"), new_job("later", due=5_000))
    assert await engine.transfer(["a", "later"], "other") == ["ok", "ok"]
    assert await numbers_of(engine, "b") == ("open", 2, 0, 0, 0, 2)
