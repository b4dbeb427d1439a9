"""set_cron: makes or changes a schedule; an equal one stays as it is."""

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.model.schedule import first
from tests.conftest import Clock
from tests.engine.factories import (
    TestWorker,
    dump,
    happened,
    listening,
    new_spec,
    raw,
    set_cron,
    standing_of,
    tick,
)
from tests.engine.processes import run


async def test_a_schedule_is_made_with_its_first_tick_and_the_timers_are_told(engine: Engine, clock: Clock) -> None:
    async with listening(engine, engine.keys.timer) as timer:
        assert await set_cron(engine, clock, "a", new_spec()) == "made"
        assert await timer.messages() == [str(clock() + 1_000)]
    standing = await standing_of(engine, "a")
    assert (standing.status, standing.source, standing.next, standing.due) == (
        "active",
        "set",
        clock() + 1_000,
        clock() + 1_000,
    )
    assert await happened(engine) == [("set_cron", "a", "made")]


async def test_set_cron_with_the_same_content_changes_not_one_byte(engine: Engine, clock: Clock) -> None:
    await set_cron(engine, clock, "a", new_spec())
    before = await dump(engine)
    clock.advance(5_000)
    assert await set_cron(engine, clock, "a", new_spec()) == "same"
    assert await dump(engine) == before


async def test_other_arguments_keep_the_next_tick_and_another_pace_does_not(engine: Engine, clock: Clock) -> None:
    await set_cron(engine, clock, "a", new_spec(60_000))
    due = (await standing_of(engine, "a")).due
    clock.advance(30_000)
    assert await set_cron(engine, clock, "a", new_spec(60_000, payload=b"other")) == "changed"
    assert (await standing_of(engine, "a")).due == due
    assert await set_cron(engine, clock, "a", new_spec(5_000, payload=b"other")) == "changed"
    assert (await standing_of(engine, "a")).due == clock() + 5_000


async def test_a_schedule_set_at_run_time_wins_over_the_code(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await set_cron(engine, clock, "a", new_spec(1_000), worker.name)
    assert await set_cron(engine, clock, "a", new_spec(2_000)) == "changed"
    assert await set_cron(engine, clock, "a", new_spec(1_000), worker.name) == "kept"
    assert (await standing_of(engine, "a")).pace == "every 2000 0"


async def test_a_paused_schedule_stays_paused(engine: Engine, clock: Clock) -> None:
    await set_cron(engine, clock, "a", new_spec(1_000))
    await engine.pause_cron("a")
    await set_cron(engine, clock, "a", new_spec(2_000))
    assert (await standing_of(engine, "a")).status == "paused"


async def test_an_orphaned_schedule_goes_on_where_it_was_when_the_code_has_it_again(
    engine: Engine, clock: Clock
) -> None:
    worker, spec = await TestWorker(engine).register(), new_spec()
    await set_cron(engine, clock, "a", spec, worker.name)
    await engine.retire(worker.name)
    clock.advance(1_000)
    assert await tick(engine, clock, "a", spec) == ("alone", 0)
    await TestWorker(engine, "with other code").register()
    assert await tick(engine, clock, "a", spec) == ("orphaned", 0)
    assert (await engine.due_crons()).crons == []
    again = await TestWorker(engine).register()
    assert await set_cron(engine, clock, "a", spec, again.name) == "same"
    assert await tick(engine, clock, "a", spec) == ("ok", 1)


async def test_workers_that_are_gone_are_removed_from_the_keepers_with_the_next_set_cron(
    engine: Engine, clock: Clock
) -> None:
    for _ in range(3):
        worker = await TestWorker(engine).register()
        await set_cron(engine, clock, "a", new_spec(), worker.name)
        await engine.retire(worker.name)
    worker = await TestWorker(engine).register()
    await set_cron(engine, clock, "a", new_spec(), worker.name)
    kept = await (await raw(engine)).zrange(engine.keys("keepers"), 0, -1)
    assert kept == [b"", f"a\x1f{worker.name}".encode()]


async def test_the_view_says_which_schedules_no_live_worker_has(engine: Engine, clock: Clock) -> None:
    async def orphaned() -> dict[str, bool]:
        return {record.id: record.orphaned async for record in Views(engine).crons()}

    old, spec = await TestWorker(engine).register(), new_spec()
    await set_cron(engine, clock, "kept", spec, old.name)
    await set_cron(engine, clock, "removed", spec, old.name)
    await set_cron(engine, clock, "set", spec)
    new = await TestWorker(engine).register()
    await set_cron(engine, clock, "kept", spec, new.name)
    assert not any((await orphaned()).values())
    await engine.retire(old.name)
    assert await orphaned() == {"kept": False, "removed": True, "set": False}
    await engine.retire(new.name)
    assert not any((await orphaned()).values())  # nobody is there who could have it


async def test_an_unreadable_schedule_is_made_again(engine: Engine, clock: Clock) -> None:
    await set_cron(engine, clock, "a", new_spec())
    await (await raw(engine)).hset(engine.keys("crons"), "state\x1fa", b"\xc1")
    assert await set_cron(engine, clock, "a", new_spec()) == "made"


async def test_fifty_nodes_that_start_at_once_leave_exactly_one_of_each(real_engine: Engine, url: str) -> None:
    answers = run("declare", real_engine, url, 50)
    words = [word for one in answers for word in one["words"]]
    assert sorted(words) == ["made"] * 3 + ["same"] * 147
    records = [record async for record in Views(real_engine).crons()]
    assert sorted(record.id for record in records) == ["cron-0", "cron-1", "cron-2"]
    assert await real_engine.due_crons(0) is not None
    for number in range(50):
        await real_engine.retire(f"worker-{number}")


async def test_fifty_nodes_that_tick_at_once_make_one_job_per_tick(real_engine: Engine, url: str) -> None:
    spec = new_spec(100, catch_up="all")
    now = (await real_engine.due_crons(0)).now
    nominal, due = first("a", spec, now)
    await real_engine.set_cron("a", spec, (nominal, due), source="set")
    answers = run("ticks", real_engine, url, 20)
    jobs = {job_id: header async for job_id, header in Views(real_engine).headers()}
    standing = await standing_of(real_engine, "a")
    assert sum(one["made"] for one in answers) == len(jobs) == standing.made == (standing.next - nominal) // 100 > 5
