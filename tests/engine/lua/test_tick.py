"""tick: a due schedule makes its jobs, each tick once, however many workers try."""

import pytest

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.model.schedule import Ticks, job_of, plan
from tests.conftest import Clock
from tests.engine.factories import (
    TestWorker,
    dump,
    happened,
    header_of,
    listening,
    new_spec,
    raw,
    set_cron,
    standing_of,
    states,
    tick,
)


async def test_a_tick_makes_one_job_under_an_id_of_schedule_and_nominal_time(engine: Engine, clock: Clock) -> None:
    spec = new_spec(queue="other", priority=3, expires=5_000, payload=b"\xff")
    await set_cron(engine, clock, "a", spec)
    nominal = (await standing_of(engine, "a")).next
    clock.advance(1_000)
    async with listening(engine, engine.keys.timer) as timer:
        assert await tick(engine, clock, "a", spec) == ("ok", 1)
        assert str(clock() + 1_000) in await timer.messages()
    header = await header_of(engine, job_of("a", nominal))
    assert (header.state, header.queue, header.priority) == ("ready", "other", 3)
    assert (header.created, header.expires, header.size) == (clock(), clock() + 5_000, 1)
    standing = await standing_of(engine, "a")
    assert (standing.next, standing.made, standing.last) == (nominal + 1_000, 1, job_of("a", nominal))
    assert standing.history == [(nominal, clock(), standing.last, "made")]
    assert (await happened(engine))[1:] == [("enqueue", standing.last, "cron a")]
    assert await Views(engine).counts() == {"other": {"ready": 1}}
    worker = await TestWorker(engine).register()
    assert [lease.payload for lease in await worker.lease()] == [b"\xff"]


async def test_a_second_tick_changes_nothing(engine: Engine, clock: Clock) -> None:
    spec = new_spec()
    await set_cron(engine, clock, "a", spec)
    expected = (await standing_of(engine, "a")).next
    clock.advance(1_000)
    ticks = plan("a", spec, expected, clock())
    assert await engine.tick("a", spec, expected, ticks) == ("ok", 1)
    before = await dump(engine)
    assert await engine.tick("a", spec, expected, ticks) == ("stale", 0)
    assert await dump(engine) == before


async def test_a_tick_whose_job_was_made_before_makes_no_second_one(engine: Engine, clock: Clock) -> None:
    spec = new_spec()
    await set_cron(engine, clock, "a", spec)
    client = await raw(engine)
    state = await client.hget(engine.keys("crons"), "state\x1fa")
    clock.advance(1_000)
    await tick(engine, clock, "a", spec)
    await client.hset(engine.keys("crons"), "state\x1fa", state)
    assert await tick(engine, clock, "a", spec) == ("ok", 1)
    assert len(await states(engine)) == 1


async def test_a_tick_before_its_time_is_refused_by_the_servers_clock(engine: Engine, clock: Clock) -> None:
    spec = new_spec(60_000, jitter=59_000)
    await set_cron(engine, clock, "a", spec)
    standing = await standing_of(engine, "a")
    assert standing.due > standing.next
    clock.now = standing.due - 1
    wrong = Ticks([standing.next], 0, standing.next + 60_000, standing.next + 60_000)
    assert await engine.tick("a", spec, standing.next, wrong) == ("early", 0)
    clock.advance(1)
    assert await engine.tick("a", spec, standing.next, wrong) == ("ok", 1)


@pytest.mark.parametrize(
    ("catch_up", "late", "made"), [("all", 5_400, 5), ("latest", 5_400, 1), ("none", 5_400, 1), ("all", 200_000, 50)]
)
async def test_missed_ticks_follow_catch_up(engine: Engine, clock: Clock, catch_up: str, late: int, made: int) -> None:
    spec = new_spec(catch_up=catch_up)
    await set_cron(engine, clock, "a", spec)
    begin = clock()
    clock.advance(late)
    assert await tick(engine, clock, "a", spec) == ("ok", made)
    standing = await standing_of(engine, "a")
    assert standing.last == job_of("a", begin + (made if catch_up == "all" else late // 1_000) * 1_000)
    assert standing.missed == (catch_up != "all")
    assert len(standing.history) == min(made + standing.missed, 10)


async def test_catch_up_none_leaves_out_ticks_that_are_long_past(engine: Engine, clock: Clock) -> None:
    spec = new_spec(60_000, catch_up="none")
    await set_cron(engine, clock, "a", spec)
    nominal = (await standing_of(engine, "a")).next
    clock.now = nominal + 10_001
    assert await tick(engine, clock, "a", spec) == ("ok", 0)
    standing = await standing_of(engine, "a")
    assert (standing.next, standing.missed) == (nominal + 60_000, 1)
    assert standing.history == [(nominal, clock(), "", "missed")]


async def test_overlap_skip_makes_no_job_while_the_last_one_is_unfinished(engine: Engine, clock: Clock) -> None:
    spec = new_spec(overlap="skip")
    await set_cron(engine, clock, "a", spec)
    made = []
    for _ in range(3):
        clock.advance(1_000)
        made.append((await tick(engine, clock, "a", spec))[1])
    worker = await TestWorker(engine).register()
    (lease,) = await worker.lease(5)
    clock.advance(1_000)
    made.append((await tick(engine, clock, "a", spec))[1])
    await worker.complete(lease)
    clock.advance(1_000)
    made.append((await tick(engine, clock, "a", spec))[1])
    assert made == [1, 0, 0, 0, 1]
    standing = await standing_of(engine, "a")
    assert (standing.made, standing.skipped) == (2, 3)
    assert [word for *_, word in standing.history] == ["made", "skipped", "skipped", "skipped", "made"]


async def test_overlap_queue_makes_them_one_after_the_other_and_timers_hear_of_each_end(
    engine: Engine, clock: Clock
) -> None:
    spec = new_spec(overlap="queue")
    await set_cron(engine, clock, "a", spec)
    for _ in range(3):
        clock.advance(1_000)
        await tick(engine, clock, "a", spec)
    worker = await TestWorker(engine).register()
    order = []
    async with listening(engine, engine.keys.channel("crons")) as subscription:
        for _ in range(3):
            (lease,) = await worker.lease(5)
            order.append(lease.id)
            await worker.complete(lease)
            messages = await subscription.messages()
            await tick(engine, clock, "a", spec)
            assert messages == ([f"end\x1f{lease.id}"] if len(order) < 3 else [])
    assert order == [job_of("a", clock() - late) for late in (2_000, 1_000, 0)]
    assert (await standing_of(engine, "a")).line == []


async def test_queued_ticks_are_bounded_and_the_rest_wait_to_be_claimed(engine: Engine, clock: Clock) -> None:
    spec = new_spec(overlap="queue", catch_up="all")
    await set_cron(engine, clock, "a", spec)
    clock.advance(500_000)
    words = [(await tick(engine, clock, "a", spec))[0] for _ in range(4)]
    assert words == ["ok", "ok", "ok", "full"]
    standing = await standing_of(engine, "a")
    assert (standing.made, len(standing.line) // 2, standing.skipped) == (1, 149, 0)
    assert (await engine.due_crons()).next == clock() + 10_000
    for _ in range(50):
        await engine.cancel([(await standing_of(engine, "a")).last])
        await tick(engine, clock, "a", spec)
    assert (await standing_of(engine, "a")).made == 51


async def test_overlap_allow_makes_them_all(engine: Engine, clock: Clock) -> None:
    spec = new_spec(overlap="allow")
    await set_cron(engine, clock, "a", spec)
    for _ in range(3):
        clock.advance(1_000)
        await tick(engine, clock, "a", spec)
    assert len(await states(engine)) == 3


async def test_a_taken_unique_key_makes_no_job_also_within_one_call(engine: Engine, clock: Clock) -> None:
    spec = new_spec(unique="u", catch_up="all")
    await set_cron(engine, clock, "a", spec)
    clock.advance(3_000)
    assert await tick(engine, clock, "a", spec) == ("ok", 1)
    assert [word for *_, word in (await standing_of(engine, "a")).history] == ["made", "unique", "unique"]


async def test_a_delay_of_its_jobs_comes_on_top(engine: Engine, clock: Clock) -> None:
    spec = new_spec(due=500)
    await set_cron(engine, clock, "a", spec)
    clock.advance(1_000)
    await tick(engine, clock, "a", spec)
    (job_id,) = await states(engine)
    header = await header_of(engine, job_id)
    assert (header.state, header.due) == ("scheduled", clock() + 500)


async def test_a_tick_of_a_removed_changed_or_paused_schedule_is_refused_with_the_reason(
    engine: Engine, clock: Clock
) -> None:
    ticks = Ticks([], 0, 1, 1)
    assert await engine.tick("a", new_spec(), -1, ticks) == ("missing", 0)
    await set_cron(engine, clock, "a", new_spec())
    assert await engine.tick("a", new_spec(2_000), -1, ticks) == ("changed", 0)
    await engine.pause_cron("a")
    assert await engine.tick("a", new_spec(), -1, ticks) == ("paused", 0)


async def test_history_keeps_the_last_ten(engine: Engine, clock: Clock) -> None:
    spec = new_spec()
    await set_cron(engine, clock, "a", spec)
    for _ in range(12):
        clock.advance(1_000)
        await tick(engine, clock, "a", spec)
    standing = await standing_of(engine, "a")
    assert [nominal for nominal, *_ in standing.history] == [clock() - 1_000 * n for n in range(9, -1, -1)]
    assert standing.made == 12
