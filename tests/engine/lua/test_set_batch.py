"""set_batch: changes priority and limit of a live batch."""

from penstock.engine.engine import Engine
from tests.engine.factories import TestWorker, header_of, new_job, open_batch


async def test_a_new_priority_of_a_batch_applies_to_ready_and_held_members(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "slow", *(new_job(f"s{n:02}") for n in range(20)), priority=50)
    await open_batch(engine, "fast", *(new_job(f"f{n:02}") for n in range(20)), priority=20)
    assert await engine.set_batch("slow", priority=5) == "ok"
    taken = [lease.id for _ in range(4) for lease in await worker.lease(5)]
    assert taken == [f"s{n:02}" for n in range(20)]
    assert (await header_of(engine, "s19")).priority in {5, 50}
    assert [lease.id for lease in await worker.lease(1)] == ["f00"]
    assert await engine.set_batch("nobody", priority=5) == "missing"


async def test_a_member_has_the_batch_s_priority_and_not_its_own(engine: Engine) -> None:
    await open_batch(engine, "b", new_job("a", priority=90), priority=7)
    await open_batch(engine, "c", new_job("d", priority=90))
    assert (await header_of(engine, "a")).priority == 7
    assert (await header_of(engine, "d")).priority == 90


async def test_a_batch_runs_up_to_its_limit_which_can_be_raised(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "b", *(new_job(f"j{n}") for n in range(10)), limit=2)
    assert len(await worker.lease(10)) == 2
    assert await engine.set_batch("b", limit=5) == "ok"
    assert len(await worker.lease(10)) == 3
    assert await engine.set_batch("b", limit=-1) == "ok"
    assert len(await worker.lease(10)) == 0


async def test_batches_of_one_priority_take_turns(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "big", *(new_job(f"b{n:02}") for n in range(80)))
    await open_batch(engine, "small", *(new_job(f"s{n}") for n in range(4)))
    taken = []
    for _ in range(24):
        for lease in await worker.lease(1):
            taken.append(lease.id)
            await worker.complete(lease)
    assert {lease for lease in taken if lease.startswith("s")} == {"s0", "s1", "s2", "s3"}
