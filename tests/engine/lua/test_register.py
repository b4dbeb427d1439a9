"""register: begins the lease of a worker."""

import pytest

from penstock.engine.engine import MAX_WORKER_BYTES, Engine
from penstock.engine.read.views import Node, Views
from tests.conftest import Clock
from tests.engine.factories import LIFE, TestWorker, dump, enqueue, happened, listening, new_job


async def test_a_registered_worker_is_alive_for_its_life_and_shown(engine: Engine, clock: Clock) -> None:
    assert await engine.register("w", LIFE, '{"host":"h"}', ("mail", "sms")) == "ok"
    expected = Node("w", clock() + LIFE, '{"host":"h"}', ["mail", "sms"], LIFE, clock())
    assert await Views(engine).workers() == [expected]


async def test_a_worker_can_lease_as_soon_as_it_is_registered(engine: Engine) -> None:
    await enqueue(engine, new_job("a"))
    assert (await engine.lease("w", 1)).word == "unknown"
    await engine.register("w", LIFE)
    assert [lease.id for lease in (await engine.lease("w", 1)).leases] == ["a"]


async def test_a_resent_register_gets_the_same_answer_and_changes_nothing(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a"), new_job("b"))
    (lease,) = await worker.lease()
    clock.advance(100)
    assert await engine.register("w", LIFE) == "ok"
    assert [node.alive_until for node in await Views(engine).workers()] == [clock() + LIFE]
    assert await worker.complete(lease) == "ok"
    assert (await engine.lease("w", 2, answered=1)).word == "ok"
    assert (await engine.lease("w", 1)).word == "stale"


async def test_registering_for_other_queues_removes_the_worker_from_those_idle_in_the_old_ones(engine: Engine) -> None:
    await engine.register("w", LIFE, "{}", ("a",))
    await engine.lease("w", 1, queues=("a",))
    await engine.register("w", LIFE, "{}", ("b",))
    await engine.lease("w", 2, queues=("b",))
    async with listening(engine, engine.keys.channel("w")) as subscription:
        await enqueue(engine, new_job(queue="a"))
        assert await subscription.messages() == []
        await enqueue(engine, new_job(queue="b"))
        assert await subscription.messages() == ["work"]
    await engine.retire("w")


async def test_a_retired_id_is_refused_and_nothing_changes(engine: Engine) -> None:
    await engine.register("retired", LIFE)
    await engine.retire("retired")
    await engine.register("reaped", LIFE)
    await engine.reap_worker("reaped", [], LIFE)
    before = await dump(engine)
    assert [await engine.register(name, LIFE) for name in ("retired", "reaped")] == ["retired", "retired"]
    assert await dump(engine) == before


async def test_register_moves_no_job_and_adds_no_event(engine: Engine) -> None:
    await enqueue(engine, new_job("a"))
    before = await dump(engine)
    await engine.register("w", LIFE)
    after = await dump(engine)
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {engine.keys(name) for name in ("workers", "lives", "nodes", "meta")}
    assert await happened(engine) == [("enqueue", "a", "")]


async def test_the_longest_name_of_a_worker_fits_into_a_record_and_a_longer_one_is_refused(engine: Engine) -> None:
    worker = await TestWorker(engine, "w" * MAX_WORKER_BYTES).register()
    await enqueue(engine, new_job("a"))
    leased = await engine.lease(worker.name, 2**53 - 1)
    assert leased.leases[0].header.claim == f"{worker.name}\x1f{2**53 - 1}"
    with pytest.raises(ValueError, match="at most"):
        engine.register("w" * (MAX_WORKER_BYTES + 1), LIFE)
