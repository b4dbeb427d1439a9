"""due_crons: which schedules are due."""

from penstock.engine.answers import DueCron, DueCrons
from penstock.engine.engine import Engine
from tests.conftest import Clock
from tests.engine.factories import dump, new_spec, raw, set_cron, standing_of, tick


async def test_due_schedules_come_with_all_that_a_tick_needs(engine: Engine, clock: Clock) -> None:
    spec = new_spec(1_000, payload=b"\xff\x00", jitter=0)
    await set_cron(engine, clock, "a", spec)
    await set_cron(engine, clock, "b", new_spec(5_000))
    assert await engine.due_crons() == DueCrons(clock() + 1_000, clock(), [])
    clock.advance(1_000)
    before = await dump(engine)
    standing = await standing_of(engine, "a")
    assert await engine.due_crons() == DueCrons(clock(), clock(), [DueCron("a", spec, standing)])
    assert (await engine.due_crons(0)).crons == []
    assert await dump(engine) == before


async def test_an_answer_is_bounded_in_number_and_bytes(engine: Engine, clock: Clock) -> None:
    for i in range(5):
        await set_cron(engine, clock, f"s{i}", new_spec(payload=bytes(1_500_000)))
    clock.advance(1_000)
    assert len((await engine.due_crons(20)).crons) == 2
    assert len((await engine.due_crons(1)).crons) == 1


async def test_unknown_entries_of_the_index_are_dropped(engine: Engine, clock: Clock) -> None:
    client = await raw(engine)
    await engine.init()
    await client.zadd(engine.keys("ticks"), {"ghost": 1})
    assert await engine.due_crons() == DueCrons(-1, clock(), [])
    assert await client.zrange(engine.keys("ticks"), 0, -1) == [b""]


async def test_a_schedule_that_this_version_cannot_read_comes_without_its_content(engine: Engine, clock: Clock) -> None:
    await set_cron(engine, clock, "a", new_spec())
    clock.advance(1_000)
    client = await raw(engine)
    spec = await client.hget(engine.keys("crons"), "spec\x1fa")
    await client.hset(engine.keys("crons"), "spec\x1fa", b"\x01")
    assert (await engine.due_crons()).crons == [DueCron("a", None, None)]
    await client.hset(engine.keys("crons"), "spec\x1fa", spec)


async def test_text_that_is_not_utf8_spoils_one_schedule_only(engine: Engine, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        await set_cron(engine, clock, name, new_spec())
    client, crons, ticks = await raw(engine), engine.keys("crons"), engine.keys("ticks")
    spec, state = await client.hmget(crons, "spec\x1fa", "state\x1fa")
    await client.hset(crons, "spec\x1fa", spec.replace(b"every", b"ev\xffry"))
    await client.hset(crons, mapping={b"spec\x1f\xff": spec, b"state\x1f\xff": state})
    await client.zadd(ticks, {b"\xff": 1})
    clock.advance(1_000)
    found = {cron.id: cron.spec is not None for cron in (await engine.due_crons()).crons}
    assert found == {"a": False, "b": True, "c": True, "b'\\xff'": False}
    await client.hset(crons, "spec\x1fa", spec)
    await client.hdel(crons, b"spec\x1f\xff", b"state\x1f\xff")
    await client.zrem(ticks, b"\xff")


async def test_schedules_that_are_not_due_come_if_asked_for_and_ticks_wait(engine: Engine, clock: Clock) -> None:
    spec = new_spec(60_000, overlap="queue")
    for name in ("a", "b"):
        await set_cron(engine, clock, name, spec)
        await engine.run_cron(name, spec, f"{name}@1")
    await engine.run_cron("a", spec, "a@2")
    assert [cron.id for cron in (await engine.due_crons(also=["a", "b", "c"])).crons] == ["a"]
    clock.advance(10_000)
    assert [cron.id for cron in (await engine.due_crons()).crons] == ["a"]
    await tick(engine, clock, "a", spec)
