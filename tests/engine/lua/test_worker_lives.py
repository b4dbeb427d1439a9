"""Leases of workers after a silence: no worker is dead before its own lease has passed, whichever is heard first."""

import pytest

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from tests.conftest import Clock
from tests.engine.factories import TestWorker, enqueue, new_job, raw, states

SHORT, LONG = 10_000, 30_000


async def _busy(engine: Engine, name: str, life: int) -> TestWorker:
    """A worker with this life that runs a job of its name."""
    assert await engine.register(name, life) == "ok"
    await enqueue(engine, new_job(name))
    worker = TestWorker(engine, name)
    await worker.lease()
    return worker


async def _speak(engine: Engine, name: str, life: int) -> list[str]:
    """As a worker with a timer does: it renews its own life and takes back what the dead left."""
    words = (await engine.renew(life, [name])).words
    await engine.reap(life)
    return words


ORDERS = [("short", "long"), ("long", "short")]


@pytest.mark.parametrize("order", ORDERS, ids=" first, then ".join)
@pytest.mark.parametrize("silence", [SHORT // 2 + 1, 12_000, 14_000, 20_000, 1_000_000])
async def test_no_worker_is_taken_for_dead_after_a_silence_whichever_is_heard_first(
    engine: Engine, clock: Clock, order: tuple[str, str], silence: int
) -> None:
    lives = {"short": SHORT, "long": LONG}
    for name in order:
        await _busy(engine, name, lives[name])
    clock.advance(silence)
    words = [await _speak(engine, order[0], lives[order[0]])]
    clock.advance(SHORT - 1)
    words.append(await _speak(engine, order[1], lives[order[1]]))
    assert words == [["ok"], ["ok"]]
    assert await states(engine) == {"short": "running", "long": "running"}


async def test_a_silence_is_measured_by_the_lease_of_each_worker(engine: Engine, clock: Clock) -> None:
    for name, life in (("short", SHORT), ("long", LONG)):
        await _busy(engine, name, life)
    clock.advance(100_000)
    assert await engine.register("new", SHORT) == "ok"
    for _ in range(3):
        clock.advance(SHORT // 3)
        await _speak(engine, "new", SHORT)
    assert await states(engine) == {"short": "running", "long": "running"}
    clock.advance(SHORT // 3)
    await _speak(engine, "new", SHORT)
    assert await states(engine) == {"short": "ready", "long": "running"}
    for _ in range(6):
        clock.advance(SHORT // 3)
        await _speak(engine, "new", SHORT)
    assert await states(engine) == {"short": "ready", "long": "ready"}
    assert [node.worker for node in await Views(engine).workers()] == ["new"]


@pytest.mark.parametrize("others", [1, 250])
async def test_pauses_of_workers_with_long_leases_keep_no_dead_worker_alive(
    engine: Engine, clock: Clock, others: int
) -> None:
    for n in range(others):
        await engine.register(f"dead-{n}", SHORT)
    await _busy(engine, "dead", SHORT)
    await _busy(engine, "long", LONG)
    clock.advance(LONG // 3)
    await _speak(engine, "long", LONG)  # a silence by the life of the short ones: they have one more
    assert await states(engine) == {"dead": "running", "long": "running"}
    clock.advance(LONG // 3)
    for _ in range(others // 100 + 1):
        await _speak(engine, "long", LONG)
    assert await states(engine) == {"dead": "ready", "long": "running"}
    assert [node.worker for node in await Views(engine).workers()] == ["long"]


async def test_a_dead_worker_with_a_long_lease_is_reaped_while_others_have_short_ones(
    engine: Engine, clock: Clock
) -> None:
    await _busy(engine, "dead", LONG)
    await _busy(engine, "short", SHORT)
    for _ in range(9):
        assert (await states(engine))["dead"] == "running"
        clock.advance(SHORT // 3 + 1)
        await _speak(engine, "short", SHORT)
    assert await states(engine) == {"dead": "ready", "short": "running"}


async def test_a_worker_that_registers_again_has_the_lease_that_it_named_last(engine: Engine, clock: Clock) -> None:
    await engine.register("w", LONG)
    await _busy(engine, "w", SHORT)
    assert await (await raw(engine)).zscore(engine.keys("lives"), "w") == SHORT
    clock.advance(SHORT // 2 + 1)
    await engine.reap(LONG)
    clock.advance(SHORT // 2)
    await engine.reap(LONG)
    assert await states(engine) == {"w": "running"}
    clock.advance(SHORT)
    await engine.reap(LONG)
    assert await states(engine) == {"w": "ready"}


async def test_the_lease_of_a_worker_is_forgotten_with_it(engine: Engine) -> None:
    for name in ("retired", "reaped", "there"):
        await engine.register(name, LONG)
    await engine.retire("retired")
    await engine.reap_worker("reaped", [], LONG)
    assert await (await raw(engine)).zrange(engine.keys("lives"), 0, -1) == [b"there", b""]


async def test_a_worker_whose_stored_lease_was_lost_is_judged_by_that_of_the_caller(
    engine: Engine, clock: Clock
) -> None:
    await _busy(engine, "w", SHORT)
    await engine.register("other", SHORT)
    await (await raw(engine)).zrem(engine.keys("lives"), "w")
    clock.advance(20_000)
    for _ in range(9):
        await _speak(engine, "other", LONG)
        assert await states(engine) == {"w": "running"}
        clock.advance(LONG // 9)
    await _speak(engine, "other", LONG)
    clock.advance(1_000)
    await _speak(engine, "other", LONG)
    assert await states(engine) == {"w": "ready"}


STEPS = [1_000, 60_000, 86_400_000]


@pytest.mark.parametrize("step", STEPS)
async def test_a_clock_that_steps_back_keeps_no_dead_worker_alive(engine: Engine, clock: Clock, step: int) -> None:
    await _busy(engine, "dead", SHORT)
    await _busy(engine, "idle", SHORT)
    await _busy(engine, "long", LONG)
    clock.advance(SHORT // 3)
    await _speak(engine, "long", LONG)
    clock.advance(-step)
    for _ in range(4):
        assert await _speak(engine, "long", LONG) == ["ok"]
        assert (await engine.renew(SHORT, ["idle"])).words == ["ok"]
        assert set((await states(engine)).values()) == {"running"}
        clock.advance(SHORT // 3)
    lives = {node.worker: node.alive_until for node in await Views(engine).workers()}
    assert max(lives.values()) <= clock() + LONG
    await _speak(engine, "long", LONG)
    assert await states(engine) == {"dead": "ready", "idle": "running", "long": "running"}


async def test_thousands_of_workers_live_no_longer_than_their_lease_after_a_step_back(
    engine: Engine, clock: Clock
) -> None:
    await engine.register("w", SHORT)
    client, names = await raw(engine), [f"w{n}" for n in range(2_500)]
    node = await client.hget(engine.keys("nodes"), "w")
    await client.hset(engine.keys("nodes"), mapping=dict.fromkeys(names, node))
    await client.zadd(engine.keys("lives"), dict.fromkeys(names, SHORT))
    await client.zadd(engine.keys("workers"), dict.fromkeys(names, clock() + SHORT))
    clock.advance(-60_000)
    assert await engine.reap(LONG) == (0, 0)
    assert {node.alive_until for node in await Views(engine).workers()} == {clock() + SHORT}
