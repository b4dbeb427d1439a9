"""init: makes the namespace, or checks its layout."""

from penstock.engine.engine import Engine
from penstock.engine.keys import KINDS
from penstock.engine.repair.audit import audit
from penstock.engine.scripts import SCHEMA
from tests.conftest import Clock
from tests.engine.factories import TestWorker, dump, enqueue, happened, new_job, populate, raw, states


async def test_init_makes_every_key_with_its_type(engine: Engine, clock: Clock) -> None:
    assert await engine.init() == SCHEMA
    client = await raw(engine)
    kinds = {name: (await client.type(engine.keys(name))).decode() for name in KINDS}
    assert kinds == KINDS
    assert await client.hgetall(engine.keys("meta")) == {b"schema": SCHEMA.encode(), b"made": str(clock()).encode()}
    assert await happened(engine) == []


async def test_a_namespace_that_is_there_stays_as_it_is(engine: Engine, clock: Clock) -> None:
    await populate(engine)
    before = await dump(engine)
    clock.advance(1_000)
    assert await engine.init() == SCHEMA
    assert await dump(engine) == before


async def test_deleted_keys_are_made_again(engine: Engine) -> None:
    await engine.init()
    await (await raw(engine)).delete(*engine.all_keys()[1:])
    assert await audit(engine) != []
    await engine.init()
    assert await audit(engine) == []


async def test_a_namespace_of_another_layout_is_reported_and_not_touched(engine: Engine) -> None:
    await populate(engine)
    client = await raw(engine)
    await client.hset(engine.keys("meta"), "schema", "99")
    await client.delete(engine.keys("stats"))
    before = await dump(engine)
    assert await engine.init() == "99"
    assert await dump(engine) == before
    await client.hset(engine.keys("meta"), "schema", SCHEMA)
    await engine.init()


async def test_the_first_call_runs_init_by_itself(engine: Engine) -> None:
    await enqueue(engine, new_job("a"))
    assert await states(engine) == {"a": "ready"}
    assert await audit(engine) == []


async def encodings(engine: Engine) -> dict[str, str]:
    client = await raw(engine)
    return {name: (await client.object("encoding", engine.keys(name))).decode() for name in KINDS}


async def test_keys_of_the_hot_path_are_hash_tables_and_skip_lists(engine: Engine) -> None:
    await engine.init()
    encoding = await encodings(engine)
    hashes = ("jobs", "payloads", "results", "attempts", "unique", "waiting", "stats", "logs", "lanes")
    assert {encoding[name] for name in hashes} == {"hashtable"}
    assert {encoding[name] for name in ("ready", "leases", "held", "holders")} == {"skiplist"}


async def test_a_worker_that_registers_restores_skip_lists_after_a_restart_of_the_server(engine: Engine) -> None:
    await engine.init()
    client = await raw(engine)
    for name in ("ready", "leases", "held", "holders"):  # as a server loads what is short
        await client.delete(engine.keys(name))
        await client.zadd(engine.keys(name), {"": 0})
    assert (await encodings(engine))["leases"] == "listpack"
    await TestWorker(engine).register()
    encoding = await encodings(engine)
    assert {encoding[name] for name in ("ready", "leases", "held", "holders")} == {"skiplist"}
    assert await audit(engine) == []
