"""seal_batch: a sealed batch ends once, with its last member, however the members ended."""

from penstock.engine.engine import Engine, Retention
from tests.conftest import Clock
from tests.engine.factories import (
    TestWorker,
    batch_of,
    happened,
    listening,
    made_by,
    new_job,
    numbers_of,
    open_batch,
    outlive,
    states,
)


async def test_an_empty_batch_ends_at_once(engine: Engine) -> None:
    await open_batch(engine, "b")
    assert await engine.seal_batch("b") == "ended"
    assert (await made_by(engine, "b"))["then-1"].total == 0
    assert await engine.seal_batch("b") == "ended"
    assert await engine.seal_batch("nobody") == "missing"


async def test_the_last_member_ends_it_and_the_status_tells_how_it_went(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "b", *(new_job(f"j{n}") for n in range(3)), name="nightly")
    leases = await worker.lease(3)
    await worker.complete(leases[0], b"1")
    await engine.cancel([leases[2].id])
    assert await engine.seal_batch("b") == "sealed"
    assert await worker.bury(leases[1]) == "ok"
    assert "then-1" not in await made_by(engine, "b")
    assert await worker.release(leases[2]) == "cancelled"
    assert await numbers_of(engine, "b") == ("ended", 3, 1, 1, 1, 0)
    made = await made_by(engine, "b")
    status = made["then-1"]
    assert (status.name, status.state, status.total, status.open) == ("nightly", "ended", 3, False)
    assert (status.done, status.dead, status.cancelled, status.pending) == (1, 1, 1, 0)
    assert status.ended is not None
    assert made["on_failure-1"].dead == 1
    assert made.keys() == {"then-1", "on_failure-1"}
    assert ("end_batch", "b", "dead") in await happened(engine)


async def test_resent_settles_and_seals_count_once(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "b", new_job("a"))
    (lease,) = await worker.lease()
    await engine.seal_batch("b")
    for _ in range(2):
        assert await worker.complete(lease) == "ok"
        assert await engine.seal_batch("b") == "ended"
    assert await numbers_of(engine, "b") == ("ended", 1, 1, 0, 0, 0)
    assert list(await made_by(engine, "b")) == ["then-1"]


async def test_members_of_a_dead_worker_are_counted_when_they_are_buried(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "b", new_job("a"))
    await engine.seal_batch("b")
    await worker.lease()
    await outlive(engine, clock)
    await engine.reap(10_000, crashes=1)
    assert await numbers_of(engine, "b") == ("ended", 1, 0, 1, 0, 0)


async def test_a_batch_inside_counts_as_what_became_of_it(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "outer")
    await open_batch(engine, "fine", new_job("a"), parent="outer")
    await open_batch(engine, "bad", new_job("b"), parent="outer")
    await open_batch(engine, "off", new_job("c"), parent="outer")
    leases = {lease.id: lease for lease in await worker.lease(3)}
    for name in ("outer", "fine", "bad", "off"):
        await engine.seal_batch(name)
    await worker.complete(leases["a"])
    await worker.bury(leases["b"])
    await engine.cancel_batch("off")
    await engine.do_chores("cancel", "off")
    assert await numbers_of(engine, "outer") == ("sealed", 3, 1, 1, 0, 1)
    await worker.complete(leases["c"])
    assert await numbers_of(engine, "outer") == ("ended", 3, 1, 1, 1, 0)
    assert (await made_by(engine, "outer")).keys() == {"then-1", "on_failure-1"}


async def test_a_member_that_runs_again_after_the_end_opens_the_next_generation_all_the_way_up(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "outer")
    await open_batch(engine, "inner", new_job("a"), parent="outer")
    (lease,) = await worker.lease()
    await worker.bury(lease)
    await engine.seal_batch("outer")
    assert await engine.seal_batch("inner") == "ended"
    assert (await batch_of(engine, "outer")).phase == "ended"
    assert await engine.revive(["a"]) == ["ok"]
    assert await numbers_of(engine, "inner") == ("sealed", 1, 0, 0, 0, 1)
    assert await numbers_of(engine, "outer") == ("sealed", 1, 0, 0, 0, 1)
    (lease,) = [lease for lease in await worker.lease(10) if lease.id == "a"]
    await worker.complete(lease)
    assert await numbers_of(engine, "outer") == ("ended", 1, 1, 0, 0, 0)
    for name in ("outer", "inner"):
        assert (await states(engine)).keys() >= {f"{name}@then-1", f"{name}@then-2", f"{name}@on_failure-1"}
        assert f"{name}@on_failure-2" not in await states(engine)


async def test_members_stay_until_their_batch_has_ended(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "b", new_job("a", keep=1_000), new_job("c", keep=1_000), then=False)
    for lease in await worker.lease(2):
        await worker.complete(lease, b"1")
    clock.advance(5_000)
    assert await engine.prune(Retention(finished=0)) == (2, 0)
    assert (await engine.watch_batch("c", "b", finished=10)).members[0].watched.result == b"1"
    await engine.seal_batch("b")
    clock.advance(120_000)
    assert await engine.prune() == (2, 0)


async def test_an_ended_batch_is_forgotten_in_pages(engine: Engine, clock: Clock) -> None:
    await open_batch(engine, "b", *(new_job(f"j{n}") for n in range(7)), then=False, keep=60_000)
    await engine.cancel([f"j{n}" for n in range(7)])
    await engine.seal_batch("b")
    clock.advance(59_999)
    assert (await engine.do_chores()).moved == 0
    clock.advance(1)
    while (await engine.do_chores(limit=3)).next >= 0:
        pass
    assert (await engine.watch_batch("c", "b")).status is None
    assert await engine.revive(["j1"]) == ["ok"]


async def test_waiting_clients_are_told_once_that_the_batch_has_ended(engine: Engine) -> None:
    async with listening(engine, engine.keys.channel("client")) as subscription:
        await open_batch(engine, "b")
        status = (await engine.watch_batch("client", "b")).status
        assert status is not None
        assert status.open
        await engine.seal_batch("b")
        assert await subscription.messages() == ["end\x1f{end}b"]
