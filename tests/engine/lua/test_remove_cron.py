"""remove_cron: forgets a schedule; the jobs that it made stay."""

from penstock.engine.engine import Engine
from tests.conftest import Clock
from tests.engine.factories import TestWorker, happened, new_spec, raw, set_cron, states, tick


async def test_remove_cron_leaves_only_the_jobs_of_the_schedule(engine: Engine, clock: Clock) -> None:
    worker, spec = await TestWorker(engine).register(), new_spec()
    await set_cron(engine, clock, "a", spec, worker.name)
    clock.advance(1_000)
    await tick(engine, clock, "a", spec)
    assert await engine.remove_cron("a") == "ok"
    client = await raw(engine)
    assert await client.hkeys(engine.keys("crons")) == [b""]
    for name in ("ticks", "keepers"):
        assert await client.zrange(engine.keys(name), 0, -1) == [b""]
    assert list((await states(engine)).values()) == ["ready"]
    assert (await happened(engine))[-1] == ("remove_cron", "a", "")


async def test_remove_cron_of_an_unknown_schedule_answers_missing_and_others_stay(engine: Engine, clock: Clock) -> None:
    await set_cron(engine, clock, "ab", new_spec())
    assert await engine.remove_cron("a") == "missing"
    assert len((await engine.due_crons()).crons) == 0
    clock.advance(1_000)
    assert [cron.id for cron in (await engine.due_crons()).crons] == ["ab"]


async def test_an_unreadable_schedule_can_be_removed(engine: Engine, clock: Clock) -> None:
    await set_cron(engine, clock, "a", new_spec())
    await (await raw(engine)).hset(engine.keys("crons"), "state\x1fa", b"\xc1")
    assert await engine.remove_cron("a") == "ok"
