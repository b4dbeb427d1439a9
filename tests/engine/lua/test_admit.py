"""admit: held → ready, in lanes whose rate allows more starts."""

from penstock.engine.answers import Due
from penstock.engine.engine import Engine
from tests.conftest import Clock
from tests.engine.factories import TestWorker, dump, enqueue, happened, lane, listening, new_job, raw, states

SLOW = lane("slow", rate="0.001", burst="1")


async def test_a_job_is_shown_when_its_token_is_there_and_not_before(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", lanes=[SLOW]), new_job("b", lanes=[SLOW]))
    assert [lease.id for lease in await worker.lease(9)] == ["a"]
    assert await engine.admit() == Due(0, clock() + 1_000, clock())
    clock.advance(999)
    assert (await engine.admit())[0] == 0
    assert await worker.lease(9) == []
    clock.advance(1)
    assert (await engine.admit())[0] == 1
    assert await states(engine) == {"a": "running", "b": "ready"}
    assert [lease.id for lease in await worker.lease(9)] == ["b"]


async def test_admit_changes_nothing_when_no_lane_is_due(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", lanes=[SLOW]), new_job("b", lanes=[SLOW]))
    await worker.lease(9)
    before = await dump(engine)
    assert (await engine.admit())[0] == 0
    assert await dump(engine) == before


async def test_a_job_that_costs_more_waits_longer_and_no_worker_is_woken_too_early(
    engine: Engine, clock: Clock
) -> None:
    worker = await TestWorker(engine, "w").register()
    dear = lane("dear", rate="0.001", burst="5", cost=4)
    await enqueue(engine, *(new_job(f"j{i}", lanes=[dear]) for i in range(2)))
    assert [lease.id for lease in await worker.lease(9)] == ["j0"]
    async with listening(engine, engine.keys.channel("w")) as subscription:
        while (due := await engine.admit()).next >= 0:
            assert await subscription.messages() == []
            assert await worker.lease(9) == []
            clock.now = due.next
    assert [lease.id for lease in await worker.lease(9)] == ["j1"]
    assert clock() - Clock().now == 3_000


async def test_a_start_that_costs_more_than_the_burst_is_paid_in_full(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    dear = lane("dear", rate="0.001", burst="1", cost=3)
    await enqueue(engine, *(new_job(lanes=[dear]) for _ in range(3)))
    starts: list[int] = []
    while len(starts) < 3:
        starts += [clock() for _ in await worker.lease(9)]
        clock.advance(100)
        await engine.admit()
    assert [at - starts[0] for at in starts] == [0, 3_000, 6_000]


async def test_the_timer_learns_when_a_lane_will_open(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", lanes=[SLOW]), new_job("b", lanes=[SLOW]))
    async with listening(engine, engine.keys.timer) as subscription:
        await worker.lease(9)
        assert await subscription.messages() == [str(clock() + 1_000)]


async def test_admit_wakes_a_worker_and_adds_an_event(engine: Engine, clock: Clock) -> None:
    idle = await TestWorker(engine, "idle").register()
    await enqueue(engine, new_job("a", lanes=[SLOW]), new_job("b", lanes=[SLOW]))
    await idle.lease(9)
    clock.advance(1_000)
    async with listening(engine, engine.keys.channel("idle")) as subscription:
        await engine.admit()
        assert await subscription.messages() == ["work"]
    assert (await happened(engine))[-1] == ("admit", "b", "")


async def test_a_lane_is_forgotten_when_its_rate_is_full_again(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", lanes=[SLOW]))
    (lease,) = await worker.lease()
    await worker.complete(lease)
    client = await raw(engine)
    assert await client.hkeys(engine.keys("lanes")) == [b"", b"lane:slow"]
    clock.advance(1_000)
    assert (await engine.admit())[:2] == (1, -1)
    assert await client.hkeys(engine.keys("lanes")) == [b""]
    assert await client.zrange(engine.keys("openings"), 0, -1) == [b""]


async def test_a_page_ends_at_its_limit_and_goes_on_with_the_next(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    lanes = [lane(f"slow{i}", rate="0.001", burst="1") for i in range(5)]
    await enqueue(engine, *(new_job(lanes=[spec]) for spec in lanes * 2))
    assert len(await worker.lease(9)) == 5
    clock.advance(1_000)
    assert [(await engine.admit(2)).moved for _ in range(4)] == [2, 2, 1, 0]
    assert len(await worker.lease(9)) == 5
