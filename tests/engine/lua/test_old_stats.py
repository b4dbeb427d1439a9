"""Old statistics are removed as fast as new ones are added, however many queues there are."""

from typing import Any

from penstock.engine.engine import Engine
from tests.conftest import Clock
from tests.engine.factories import enqueue, new_job, raw

QUEUES = 1_000
MINUTE = 60_000


async def _tally(engine: Engine, clock: Clock, queues: int) -> None:
    """As if a job of each of so many queues had been enqueued just now."""
    minute, client = clock() // MINUTE, await raw(engine)
    fields = {f"{minute}\x1fqueue-{n}\x1fenqueue": 1 for n in range(queues)}
    await client.hset(engine.keys("stats"), mapping=fields)


async def _prune(engine: Engine) -> int:
    """As a timer does it: until there is no more to do. How many calls it took."""
    calls = 1
    while (await engine.prune())[1]:
        calls += 1
    return calls


async def _fields(engine: Engine) -> int:
    return int(await (await raw(engine)).hlen(engine.keys("stats"))) - 1


async def test_statistics_of_thousands_of_queues_stay_near_what_two_hours_need(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a"))
    most = 0
    for _ in range(4 * 6):  # four hours, in steps of ten minutes
        await _tally(engine, clock, QUEUES)
        clock.advance(10 * MINUTE)
        await _prune(engine)
        most = max(most, await _fields(engine))
    needed = QUEUES * 120 // 10
    assert needed <= most <= 1.25 * needed


async def test_a_sweep_reads_a_portion_in_each_call_in_proportion_to_the_time(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a"))
    client: Any = await raw(engine)
    for _ in range(10):
        await _tally(engine, clock, QUEUES)
        clock.advance(MINUTE)
    clock.advance(300 * MINUTE)
    calls = []
    for _ in range(42):  # a pass takes ten minutes, however much there is
        before = await _fields(engine)
        calls.append(await _prune(engine))
        assert before - await _fields(engine) <= 600 * calls[-1]
        clock.advance(MINUTE // 4)
    assert await client.hkeys(engine.keys("stats")) == [b""]
    assert max(calls) <= 4
    assert sum(calls) >= 10 * QUEUES // 600


async def test_a_pass_that_is_late_goes_on_until_it_is_over(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a"))
    await _tally(engine, clock, 2 * QUEUES)
    assert await engine.prune() == (0, 0)
    clock.advance(300 * MINUTE)
    assert await _prune(engine) >= QUEUES // 600 + 1
    clock.advance(10 * MINUTE)
    await _prune(engine)
    clock.advance(10 * MINUTE)
    await _prune(engine)
    assert await _fields(engine) == 0


async def test_a_prune_with_nothing_to_sweep_looks_at_no_statistics(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a"))
    await _prune(engine)
    before = await (await raw(engine)).hget(engine.keys("meta"), "sweep")
    clock.advance(MINUTE)
    assert await _prune(engine) == 1
    assert await (await raw(engine)).hget(engine.keys("meta"), "sweep") == before
