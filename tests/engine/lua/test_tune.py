"""tune: sets the limit of a lane by hand, pauses it, or returns to what the code says."""

from penstock.engine.answers import Lease
from penstock.engine.engine import Engine
from penstock.engine.repair.audit import audit
from penstock.engine.repair.reconcile import reconcile
from tests.engine.factories import (
    ORDERED,
    TestWorker,
    enqueue,
    happened,
    header_of,
    lane,
    listening,
    new_job,
    raw,
    states,
)

FEW = lane("few", 2)


async def test_a_raised_limit_lets_more_start_at_once(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(lanes=[FEW]) for _ in range(60)))
    assert len(await worker.lease(50)) == 2
    await engine.tune("lane:few", limit=40)
    assert len(await worker.lease(50)) == 38
    assert await worker.lease(50) == []


async def test_a_lowered_limit_ends_nothing_and_starts_nothing_until_enough_have_ended(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(f"j{i}", lanes=[lane("few", 5)]) for i in range(9)))
    leases = await worker.lease(9)
    await engine.tune("lane:few", limit=2)
    for lease in leases[:3]:
        await worker.complete(lease)
        assert await worker.lease(9) == []
    await worker.complete(leases[3])
    assert [lease.id for lease in await worker.lease(9)] == ["j5"]


async def test_a_limit_set_by_hand_wins_over_the_code_until_it_is_reset(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await engine.tune("lane:few", limit=1)
    await enqueue(engine, *(new_job(lanes=[FEW]) for _ in range(5)))
    assert len(await worker.lease(5)) == 1
    await engine.tune("lane:few", limit=-1)
    assert len(await worker.lease(5)) == 1
    assert await (await raw(engine)).hkeys(engine.keys("limits")) == [b""]


async def test_a_paused_lane_starts_nothing_also_not_what_is_shown_already(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", lanes=["lock:t"]), new_job("b", lanes=["lock:t"]), new_job("free"))
    await engine.tune("lock:t", paused=True)
    (free,) = await worker.lease(9)
    assert free.id == "free"
    assert await states(engine) == {"a": "held", "b": "held", "free": "running"}
    await engine.tune("lock:t", paused=False)
    assert [lease.id for lease in await worker.lease(9)] == ["a"]


async def test_pausing_keeps_the_limit_and_setting_a_limit_keeps_the_pause(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(lanes=[FEW]) for _ in range(5)))
    await engine.tune("lane:few", limit=3)
    await engine.tune("lane:few", paused=True)
    await engine.tune("lane:few", limit=4)
    assert await worker.lease(9) == []
    await engine.tune("lane:few", paused=False)
    assert len(await worker.lease(9)) == 4


async def test_pausing_an_ordered_lane_stops_also_the_job_whose_turn_it_is_and_keeps_the_order(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(f"j{i}", lanes=[lane("line", 1, kind="ordered")]) for i in range(3)))
    (first,) = await worker.lease(9)
    await worker.retry(first)
    await engine.tune("lane:line", paused=True)
    assert await worker.lease(9) == []
    await engine.tune("lane:line", paused=False)
    for expected in ("j0", "j1", "j2"):
        (lease,) = await worker.lease(9)
        assert lease.id == expected
        await worker.complete(lease)


async def test_an_ordered_lane_stays_one_at_a_time_whatever_is_set(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(lanes=[lane("line", 1, kind="ordered")]) for _ in range(3)))
    await engine.tune("lane:line", limit=3)
    assert len(await worker.lease(9)) == 1


async def test_tune_wakes_idle_workers_and_adds_an_event(engine: Engine) -> None:
    idle = await TestWorker(engine, "idle").register()
    await engine.tune("lock:t", paused=True)
    await enqueue(engine, new_job("a", lanes=["lock:t"]))
    await idle.lease()
    async with listening(engine, engine.keys.channel("idle")) as subscription:
        await engine.tune("lock:t", paused=False)
        assert await subscription.messages() == ["work"]
    assert ("tune", "", "lock:t") in await happened(engine)


async def test_a_lane_that_is_not_in_use_can_be_set_and_leaves_nothing_after_a_reset(engine: Engine) -> None:
    await engine.tune("lane:later", limit=3, paused=True)
    await engine.tune("lane:later", limit=-1, paused=False)
    client = await raw(engine)
    for name in ("limits", "lanes"):
        assert await client.hkeys(engine.keys(name)) == [b""]


# The lane of a task


async def test_a_paused_task_holds_its_jobs_and_no_others(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await engine.tune("task:tasks:run", paused=True)
    await enqueue(engine, *(new_job(f"job{n}") for n in range(12)), new_job("other", task="tasks:other"))
    leased: list[Lease] = []
    number = 0
    while number < 20 and not leased:
        number += 1
        leased = await worker.lease(4)
    assert [lease.id for lease in leased] == ["other"]
    assert await worker.lease(99) == []
    assert set((await states(engine)).values()) == {"held", "running"}


async def test_the_jobs_of_a_resumed_task_go_on_in_their_order(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await engine.tune("task:tasks:run", paused=True)
    await enqueue(engine, *(new_job(f"job{n:02}") for n in range(12)), new_job("locked", lanes=["lock:t", ORDERED]))
    assert await worker.lease(99) == []
    await engine.tune("task:tasks:run", paused=False)
    order: list[str] = []
    while leases := await worker.lease(99):
        order += [lease.id for lease in leases]
    assert order == [*(f"job{n:02}" for n in range(12)), "locked"]


async def test_a_task_is_paused_again_while_its_jobs_have_the_lane_already(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    for _ in range(3):
        await engine.tune("task:tasks:run", paused=True)
        assert await worker.lease(9) == []
        await engine.tune("task:tasks:run", paused=False)
    assert len(await worker.lease(9)) == 2
    assert (await header_of(engine, "a")).lanes == ["task:tasks:run\x1f\x1f\x1f\x1f\x1f1"]


async def test_lost_limits_do_not_keep_a_task_halted(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await engine.tune("task:tasks:run", paused=True)
    await enqueue(engine, new_job("a"))
    await (await raw(engine)).delete(engine.keys("limits"))
    assert [lease.id for lease in await worker.lease()] == ["a"]
    await reconcile(engine)


async def test_the_list_of_paused_tasks_is_rebuilt(engine: Engine) -> None:
    await engine.tune("task:tasks:run", paused=True)
    await (await raw(engine)).hdel(engine.keys("meta"), "halted")
    assert [finding.rule for finding in await audit(engine)] == ["halted"]
    await reconcile(engine)
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    assert await worker.lease() == []
