"""resume_cron: a paused schedule goes on with the next tick from now."""

from penstock.engine.engine import Engine
from penstock.model.schedule import first
from tests.conftest import Clock
from tests.engine.factories import TestWorker, happened, listening, new_spec, set_cron, standing_of, tick


async def test_a_resumed_schedule_skips_missed_ticks_and_publishes_its_next_to_the_timers(
    engine: Engine, clock: Clock
) -> None:
    spec = new_spec(catch_up="all")
    await set_cron(engine, clock, "a", spec)
    await engine.pause_cron("a")
    clock.advance(10_500)
    async with listening(engine, engine.keys.timer) as timer:
        assert await engine.resume_cron("a", spec.version, first("a", spec, clock())) == "ok"
        assert await timer.messages() == [str(clock() + 500)]
    assert await engine.resume_cron("a", spec.version, first("a", spec, clock())) == "active"
    clock.advance(500)
    assert await tick(engine, clock, "a", spec) == ("ok", 1)
    assert (await happened(engine))[2] == ("resume_cron", "a", "")


async def test_a_tick_that_is_still_to_come_stays(engine: Engine, clock: Clock) -> None:
    spec = new_spec(60_000, jitter=30_000)
    await set_cron(engine, clock, "a", spec)
    before = await standing_of(engine, "a")
    await engine.pause_cron("a")
    await engine.resume_cron("a", spec.version, (1, 1))
    assert (await standing_of(engine, "a")).due == before.due


async def test_resume_cron_of_a_changed_schedule_answers_changed(engine: Engine, clock: Clock) -> None:
    await set_cron(engine, clock, "a", new_spec())
    await engine.pause_cron("a")
    assert await engine.resume_cron("a", "another", (1, 1)) == "changed"
    assert await engine.resume_cron("b", "another", (1, 1)) == "missing"


async def test_resume_cron_of_an_orphaned_schedule_answers_orphaned(engine: Engine, clock: Clock) -> None:
    worker, spec = await TestWorker(engine).register(), new_spec()
    await set_cron(engine, clock, "a", spec, worker.name)
    await engine.retire(worker.name)
    await TestWorker(engine, "with other code").register()
    clock.advance(1_000)
    await tick(engine, clock, "a", spec)
    assert await engine.resume_cron("a", spec.version, (1, 1)) == "orphaned"
