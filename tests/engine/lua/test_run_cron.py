"""run_cron: makes a job of a schedule now, whatever its times."""

from penstock.engine.engine import Engine
from tests.conftest import Clock
from tests.engine.factories import TestWorker, happened, header_of, new_spec, set_cron, standing_of, states, tick


async def test_run_cron_makes_a_job_and_leaves_the_ticks_alone(engine: Engine, clock: Clock) -> None:
    spec = new_spec(queue="other", priority=7, retries=1)
    await set_cron(engine, clock, "a", spec)
    await engine.pause_cron("a")
    before = await standing_of(engine, "a")
    assert await engine.run_cron("a", spec, "a@run-1") == "made"
    assert await engine.run_cron("a", spec, "a@run-1") == "made"
    header = await header_of(engine, "a@run-1")
    assert (header.state, header.queue, header.priority, header.retries) == ("ready", "other", 7, 1)
    after = await standing_of(engine, "a")
    assert (after.next, after.status, after.made) == (before.next, "paused", 1)
    assert after.history == [(clock(), clock(), "a@run-1", "made")]
    assert (await happened(engine))[2:] == [("enqueue", "a@run-1", "cron a")]


async def test_run_cron_obeys_overlap(engine: Engine, clock: Clock) -> None:
    for name in ("allow", "skip", "queue"):
        spec = new_spec(overlap=name)
        await set_cron(engine, clock, name, spec)
        await engine.run_cron(name, spec, f"{name}@1")
    assert await engine.run_cron("allow", new_spec(overlap="allow"), "allow@2") == "made"
    assert await engine.run_cron("skip", new_spec(overlap="skip"), "skip@2") == "busy"
    assert await engine.run_cron("queue", new_spec(overlap="queue"), "queue@2") == "queued"
    assert await engine.run_cron("queue", new_spec(overlap="queue"), "queue@2") == "queued"
    assert sorted(await states(engine)) == ["allow@1", "allow@2", "queue@1", "skip@1"]
    await engine.cancel(["queue@1"])
    assert await tick(engine, clock, "queue", new_spec(overlap="queue")) == ("ok", 1)
    assert (await states(engine))["queue@2"] == "ready"


async def test_a_taken_unique_key_makes_no_second_job(engine: Engine, clock: Clock) -> None:
    spec = new_spec(unique="u")
    await set_cron(engine, clock, "a", spec)
    assert await engine.run_cron("a", spec, "a@1") == "made"
    assert await engine.run_cron("a", spec, "a@2") == "unique"
    worker = await TestWorker(engine).register()
    await worker.complete((await worker.lease())[0])
    assert await engine.run_cron("a", spec, "a@3") == "made"


async def test_run_cron_of_a_changed_schedule_answers_changed(engine: Engine, clock: Clock) -> None:
    await set_cron(engine, clock, "a", new_spec())
    assert await engine.run_cron("a", new_spec(2_000), "a@1") == "changed"
    assert await engine.run_cron("b", new_spec(), "b@1") == "missing"
    assert await states(engine) == {}
