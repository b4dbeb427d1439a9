"""pause_cron: a schedule makes no jobs until it is resumed; jobs that it made go on."""

from penstock.engine.engine import Engine
from tests.conftest import Clock
from tests.engine.factories import happened, new_spec, set_cron, standing_of, states, tick


async def test_a_paused_schedule_is_never_due(engine: Engine, clock: Clock) -> None:
    spec = new_spec()
    await set_cron(engine, clock, "a", spec)
    assert await engine.pause_cron("a") == "ok"
    assert await engine.pause_cron("a") == "paused"
    clock.advance(10_000)
    assert (await engine.due_crons())[::2] == (-1, [])
    assert await tick(engine, clock, "a", spec) == ("paused", 0)
    assert await states(engine) == {}
    assert (await standing_of(engine, "a")).status == "paused"
    assert (await happened(engine))[1:] == [("pause_cron", "a", "")]


async def test_pause_cron_of_an_unknown_schedule_answers_missing(engine: Engine) -> None:
    assert await engine.pause_cron("a") == "missing"
